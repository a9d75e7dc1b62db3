"""Generations that stop and go on later, behind a dispatcher: partial rollouts.

A generation that is paused is taken back from its instance, which keeps its published blocks in the
cache and its tiers, under the weights that computed them. It goes on as one does that was lost with
its instance: wherever the policy sends it, behind the tokens that the client has had.
"""

import asyncio
from collections.abc import Sequence

from inlay.cluster.instance import Instance
from inlay.cluster.instances import Instances
from inlay.cluster.requests import OpenRequest, Setback
from inlay.core.errors import EngineError
from inlay.core.failures import not_paused, not_running
from inlay.core.messages import (
    PausedRollouts,
    PauseRollouts,
    ResumeKv,
    ResumeRollouts,
    Rollout,
    RolloutChoice,
    RolloutHandle,
)

_ANSWER_S = 30.0


class Rollouts:
    """See the module.

    Requests of other dispatchers of the deployment stop and go on at their instances, whose answers
    tell of them.

    Args:
        live: requests of this dispatcher, by the ids that clients have.
    """

    def __init__(self, instances: Instances, live: dict[str, OpenRequest]) -> None:
        self._instances = instances
        self._live = live

    async def pause(self, request_ids: Sequence[str] | None) -> list[Rollout]:
        """Stop requests, or all that are there now, and say how far they are.

        Raises:
            RequestError: one of them is nowhere; those that were found are paused.
        """
        lives = self._named(request_ids)
        for live in lives:
            live.pause()
        attempts = {one.attempt.wire_id: one for one in lives if one.attempt is not None}
        ids = None if request_ids is None else [*attempts, *self._strangers(request_ids)]
        message = PauseRollouts(None if ids is None else tuple(ids))
        told = _told([] if ids == [] else await self._ask(message))
        known = _ids(lives)
        paused = [
            rollout for live in lives if (rollout := self._taken_back(live, told)) is not None
        ]
        for one in told.values():
            name = _name_of_client(one)
            if name not in known:
                paused.append(_renamed(one, name))
        _check_found(request_ids, known | {one.request_id for one in paused})
        return paused

    async def resume(self, handles: Sequence[RolloutHandle] | None, kv: ResumeKv) -> list[str]:
        """Let paused requests, or all of them, go on by the newest weights; returns their ids.

        Args:
            kv: `keep`: on KV of older weights, too, wherever it is found; `recompute`: on such of
                the newest alone.

        Raises:
            RequestError: one of them is nowhere; none goes on.
            NotPausedError: some are not paused, or by other weights; none goes on.
        """
        if handles is None:
            here, there = list(self._live.values()), None
        else:
            here, there = self._sorted(handles)
            told = await self._resume_there(there, kv, only_ask=True)
            _check_found([one.request_id for one in handles], _ids(here) | _names(told))
        told = await self._resume_there(there, kv)
        resumed = [live.message.request_id for live in here if live.paused is not None]
        for live in here:
            live.resume(kv)
        return resumed + sorted(_names(told))

    def _sorted(
        self, handles: Sequence[RolloutHandle]
    ) -> tuple[list[OpenRequest], tuple[RolloutHandle, ...]]:
        """What is paused here, and what may be at instances, as requests are named there."""
        here, there, refused = [], [], []
        for handle in dict.fromkeys(handles):
            live = self._live.get(handle.request_id)
            if live is None:
                there.append(handle)
            elif live.paused is None and live.attempt is not None:  # another dispatcher may have
                there.append(RolloutHandle(live.attempt.wire_id, handle.version))
            elif (refusal := handle.refusal(live.paused_by)) is not None:
                refused.append(refusal)
            else:
                here.append(live)
        if refused:
            raise not_paused(refused)
        return here, tuple(there)

    async def _resume_there(
        self, handles: tuple[RolloutHandle, ...] | None, kv: ResumeKv, *, only_ask: bool = False
    ) -> dict[str, Rollout]:
        """What goes on at instances, or would."""
        if handles == ():
            return {}
        answers = await self._ask(ResumeRollouts(handles, kv, only_ask))
        if refused := [why for answer in answers for why in answer.refused]:
            raise not_paused(refused)
        return _told(answers)

    def close(self) -> None:
        """Let all go on, to their end."""
        for live in self._live.values():
            live.resume("keep")

    def _named(self, request_ids: Sequence[str] | None) -> list[OpenRequest]:
        if request_ids is None:
            return list(self._live.values())
        return [self._live[one] for one in dict.fromkeys(request_ids) if one in self._live]

    def _strangers(self, request_ids: Sequence[str]) -> list[str]:
        """Those that are not this dispatcher's."""
        return [one for one in request_ids if one not in self._live]

    async def _ask(self, message: PauseRollouts | ResumeRollouts) -> list[PausedRollouts]:
        """What all instances say."""

        async def one(instance: Instance) -> PausedRollouts:
            try:
                return await instance.rollouts(message, _ANSWER_S)
            except EngineError:
                return PausedRollouts()  # it is gone, and what it had waits to go on elsewhere

        there = [instance for instance in self._instances if instance.slot is not None]
        return await asyncio.gather(*(one(instance) for instance in there))

    def _taken_back(self, live: OpenRequest, told: dict[str, Rollout]) -> Rollout | None:
        """Take a request back from where it is; None if it has ended meanwhile, or was resumed."""
        attempt = live.attempt
        if live.paused is None or live.message.request_id not in self._live:
            return None
        rollout = None
        if attempt is not None:
            rollout = told.get(attempt.wire_id)
            if attempt.complete:
                return None
            attempt.events.put_nowait(Setback(EngineError("it is paused"), "paused"))
        if live.paused_by is None:  # else a handle has it that still holds
            of_message = self._instances.weights.version_of(live.message.weights)
            live.paused_by = of_message if rollout is None else rollout.version
        return Rollout(
            request_id=live.message.request_id,
            prompt_tokens=live.message.num_tokens,
            version=live.paused_by,
            choices=_so_far(live) if rollout is None else rollout.choices,
        )


def _so_far(live: OpenRequest) -> tuple[RolloutChoice, ...]:
    """What the client has had of a request that no instance has begun to continue."""
    return tuple(
        RolloutChoice(index=index, token_ids=tuple(tokens), blocks=0)
        for index, tokens in enumerate(live.produced)
        if tokens is not None
    )


def _told(answers: Sequence[PausedRollouts]) -> dict[str, Rollout]:
    """What instances say together, by the names that requests have there."""
    return {rollout.request_id: rollout for answer in answers for rollout in answer.rollouts}


def _ids(lives: Sequence[OpenRequest]) -> set[str]:
    return {live.message.request_id for live in lives}


def _names(told: dict[str, Rollout]) -> set[str]:
    return {_name_of_client(rollout) for rollout in told.values()}


def _name_of_client(rollout: Rollout) -> str:
    return rollout.request_id.partition(":")[2]


def _renamed(rollout: Rollout, name: str) -> Rollout:
    return Rollout(
        request_id=name,
        prompt_tokens=rollout.prompt_tokens,
        version=rollout.version,
        choices=rollout.choices,
    )


def _check_found(request_ids: Sequence[str] | None, found: set[str]) -> None:
    for request_id in request_ids or ():
        if request_id not in found:
            raise not_running(request_id)
