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
from inlay.core.failures import not_running
from inlay.core.messages import (
    PauseRollouts,
    ResumeKv,
    ResumeRollouts,
    Rollout,
    RolloutChoice,
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
        told = await self._ask(PauseRollouts(None if ids is None else tuple(ids)))
        known = {live.message.request_id for live in lives}
        paused = [
            rollout for live in lives if (rollout := self._taken_back(live, told)) is not None
        ]
        for one in told.values():
            name = one.request_id.partition(":")[2]
            if name not in known:
                paused.append(_renamed(one, name))
        _check_found(request_ids, known | {one.request_id for one in paused})
        return paused

    async def resume(self, request_ids: Sequence[str] | None, kv: ResumeKv) -> list[str]:
        """Let paused requests, or all of them, go on by the newest weights; returns their ids.

        Args:
            kv: `keep`: on KV of older weights, too, wherever it is found; `recompute`: on such of
                the newest alone.

        Raises:
            RequestError: one of them is nowhere; those that were found go on.
        """
        lives = self._named(request_ids)
        resumed = [live.message.request_id for live in lives if live.paused is not None]
        for live in lives:
            live.resume(kv)
        ids = None if request_ids is None else tuple(self._strangers(request_ids))
        told = await self._ask(ResumeRollouts(ids, kv))
        resumed += [one.request_id.partition(":")[2] for one in told.values()]
        _check_found(request_ids, {live.message.request_id for live in lives} | set(resumed))
        return resumed

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

    async def _ask(self, message: PauseRollouts | ResumeRollouts) -> dict[str, Rollout]:
        """What all instances say together, by the names that requests have there."""
        if message.request_ids is not None and not message.request_ids:
            return {}

        async def one(instance: Instance) -> tuple[Rollout, ...]:
            try:
                return (await instance.rollouts(message, _ANSWER_S)).rollouts
            except EngineError:
                return ()  # it is gone, and what it had waits to go on elsewhere

        there = [instance for instance in self._instances if instance.slot is not None]
        answers = await asyncio.gather(*(one(instance) for instance in there))
        return {rollout.request_id: rollout for answer in answers for rollout in answer}

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
        version = self._instances.weights.version_of(live.message.weights)
        return Rollout(
            request_id=live.message.request_id,
            prompt_tokens=live.message.num_tokens,
            version=version if rollout is None else rollout.version,
            choices=_so_far(live) if rollout is None else rollout.choices,
        )


def _so_far(live: OpenRequest) -> tuple[RolloutChoice, ...]:
    """What the client has had of a request that no instance has begun to continue."""
    return tuple(
        RolloutChoice(index=index, token_ids=tuple(tokens), blocks=0)
        for index, tokens in enumerate(live.produced)
        if tokens is not None
    )


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
