"""Generations that stop between two steps and go on later: partial rollouts.

What is paused has no pages; its published blocks stay in the cache and its tiers, under the version
of the weights that computed them. Its stream stays open and is silent.

Source: partial rollouts as of Kimi k1.5 (arXiv 2501.12599), section 2.6.
"""

import re
from collections.abc import Iterable, Sequence

from inlay.cache import PagedKvCache, Tiers
from inlay.core.failures import not_paused, not_running
from inlay.core.messages import ResumeKv, Rollout, RolloutChoice, RolloutHandle
from inlay.engine.live import Choice, LiveRequest
from inlay.engine.requests import Requests
from inlay.engine.scheduler import Scheduler
from inlay.engine.weight_updates import WeightUpdates


class Rollouts:
    """See the module.

    Attributes:
        tiers: behind the device, which get a copy of paused blocks; None: there are none.
    """

    def __init__(
        self,
        requests: Requests,
        scheduler: Scheduler,
        cache: PagedKvCache,
        updates: WeightUpdates,
    ) -> None:
        self.tiers: Tiers | None = None
        self._requests, self._scheduler = requests, scheduler
        self._cache, self._updates = cache, updates

    def pause(self, request_ids: Sequence[str] | None) -> list[Rollout]:
        """Stop requests, or all that wait or run now, and say how far they are.

        Raises:
            RequestError: there is no such request; nothing was paused.
        """
        paused = []
        for request in self._named(request_ids):
            if request.message.phase == "prefill" or request.max_tokens == 0:
                continue  # nothing is generated: another instance waits for the KV
            choices = [one for one in request.choices if one.state in ("waiting", "running")]
            for choice in choices:
                self._scheduler.pause(choice)
                if self.tiers is not None:
                    self.tiers.keep(self._cache.cool(choice.names))
            if any(choice.state == "paused" for choice in request.choices):
                paused.append(self._describe(request))
        return paused

    def refused(self, handles: Sequence[RolloutHandle]) -> list[str]:
        """Why requests do not go on, in words; empty: all of them do.

        Raises:
            RequestError: there is no such request.
        """
        refused = []
        named = self._named([handle.request_id for handle in handles])
        for handle, request in zip(handles, named, strict=True):
            paused = any(choice.state == "paused" for choice in request.choices)
            version = self._updates.version_of(request) if paused else None
            of_client = RolloutHandle(_name_of_client(handle.request_id), handle.version)
            if (refusal := of_client.refusal(version)) is not None:
                refused.append(refusal)
        return refused

    def resume(self, handles: Sequence[RolloutHandle] | None, kv: ResumeKv) -> list[str]:
        """Let paused requests, or all of them, go on; returns their ids.

        Args:
            kv: `keep`: with the KV that the cache and its tiers have of them, whatever weights
                computed it; `recompute`: what is of other weights than the newest is computed anew.

        Raises:
            RequestError: there is no such request; nothing was resumed.
            NotPausedError: some are not paused, or by other weights; nothing was resumed.
        """
        if refused := self.refused(handles or ()):
            raise not_paused(refused)
        ids = None if handles is None else dict.fromkeys(one.request_id for one in handles)
        resumed = []
        for request in self._named(ids):
            choices = [one for one in request.choices if one.state == "paused"]
            if not choices:
                continue
            old = self._updates.is_old(request)
            for choice in choices:
                if old and kv == "recompute":
                    self._updates.restart(request, choice)
                elif old:
                    self._updates.go_on(request)
            for choice in choices:
                self._scheduler.add(choice)
            resumed.append(request.request_id)
        return resumed

    def _named(self, request_ids: Iterable[str] | None) -> list[LiveRequest]:
        live = self._requests.live
        if request_ids is None:
            return list(live.values())
        if strangers := [one for one in request_ids if one not in live]:
            raise not_running(_name_of_client(strangers[0]))
        return [live[one] for one in request_ids]

    def _describe(self, request: LiveRequest) -> Rollout:
        return Rollout(
            request_id=request.request_id,
            prompt_tokens=len(request.prompt),
            version=self._updates.version_of(request),
            choices=tuple(
                RolloutChoice(
                    index=choice.index,
                    token_ids=tuple(choice.output),
                    blocks=self._blocks(choice),
                )
                for choice in request.choices
                if choice.state == "paused"
            ),
        )

    def _blocks(self, choice: Choice) -> int:
        return self._cache.match_prefix(choice.names, choice.num_tokens).num_blocks


def _name_of_client(request_id: str) -> str:
    """Without the numbers of those that have sent it on."""
    return re.sub(r"^(\d+:){1,2}", "", request_id)
