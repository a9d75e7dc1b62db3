"""What is loaded for whom: from a request's arrival until it needs nothing more from a tier.

Owned by `Tiers`; the rules of one request's blocks are in `prefetch.py`.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

from inlay.cache.block_names import BlockNames
from inlay.cache.block_store import BlockStore, IoJob
from inlay.cache.kv_cache import KvCache, PageHold
from inlay.cache.load_costs import LoadCosts
from inlay.cache.prefetch import Prefetch, Stretch
from inlay.cache.tier_counts import TierCounts
from inlay.core.clock import Clock
from inlay.core.errors import OutOfPagesError
from inlay.core.pause import Pause

_LEAST_FIND_WAIT_S = 0.005
_LEAST_AHEAD_S = 0.02


@dataclass(slots=True, eq=False)
class _Load:
    """A stretch whose pages are being filled; `hold` keeps them from other use meanwhile."""

    job: IoJob
    prefetch: Prefetch
    stretch: Stretch
    hold: PageHold


class Loader:
    """Loads blocks for requests, the most urgent first.

    A request's life here: `begin` when it is queued; `admit` when it runs; then before each of
    its steps `advance` and `limit`; `end` at any time.

    Args:
        cache: whose pages are filled.
        blocks: moves the bytes.
        page_bytes: of one page.
        batch: blocks of one call.
    """

    def __init__(
        self,
        cache: KvCache,
        blocks: BlockStore,
        *,
        page_bytes: int,
        batch: int,
        counts: TierCounts,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._blocks = blocks
        self._clock = clock
        self._page_tokens = cache.page_tokens
        self._page_bytes = page_bytes
        self._batch = batch
        self._counts = counts
        self.costs = LoadCosts(page_bytes, cache.page_tokens)
        self._prefetches: list[Prefetch] = []
        self._finds: dict[IoJob, Prefetch] = {}
        self._loads: dict[IoJob, _Load] = {}
        self._loading: set[bytes] = set()
        self._pause = Pause("loading from a tier", clock, counts.failed)
        self._unsorted = False
        self.wake_s = inf
        """When a request that waits will have waited for long enough."""

    @property
    def busy(self) -> bool:
        """Whether jobs are under way."""
        return bool(self._finds or self._loads)

    def holds(self) -> list[PageHold]:
        """Pages in use here, besides those of running requests; for audits."""
        waiting = [p.hold for p in self._prefetches if p.hold is not None and not p.admitted]
        return waiting + [load.hold for load in self._loads.values()]

    def close(self) -> None:
        """End all prefetches; what is under way is still to be taken."""
        for prefetch in list(self._prefetches):
            self.end(prefetch)

    # For the scheduler

    def begin(self, names: BlockNames, max_tokens: int, order: Any) -> Prefetch | None:
        """A request is queued: ask what the tiers have behind what the device has.

        Args:
            names: names of the request's blocks.
            max_tokens: tokens that may be reused.
            order: who is served first, lowest first.
        """
        first = self._cache.match_prefix(names, max_tokens).num_blocks
        last = max_tokens // self._page_tokens
        now_s = self._clock.now()
        if first >= last or self._pause.on:
            return None
        prefetch = Prefetch(names, first, last, order, asked_s=now_s)
        self._prefetches.append(prefetch)
        self._unsorted = True
        self._finds[self._blocks.find(names.digests[first:last])] = prefetch
        return prefetch

    def admit(self, prefetch: Prefetch, hold: PageHold) -> None:
        """The request runs from now on, on this hold; the caller releases it."""
        prefetch.hold = hold
        prefetch.admitted = True
        self._unsorted = True

    def advance(self, prefetch: Prefetch, computed: int) -> int:
        """Take what has arrived behind `computed` tokens; returns how many need no computing."""
        hold, names, page = prefetch.hold, prefetch.names, self._page_tokens
        assert hold is not None
        while True:
            named = self._cache.adopt(hold, names, prefetch.last * page)
            computed = max(computed, named)
            block, partial = divmod(computed, page)
            reached = block if partial else prefetch.reach(block)
            if reached == block:
                return computed
            self._cache.publish(hold, names, reached * page, copied=True)
            prefetch.take(block, reached, page)
            computed = reached * page

    def limit(self, prefetch: Prefetch, computed: int, stop: int) -> int:
        """Up to where to compute now, at most `stop`; `computed` itself: wait.

        What computing would reach before it is loaded is left to computing. A wait for a load
        ends when recomputing would have, even if the load was expected sooner.
        """
        page, now_s = self._page_tokens, self._clock.now()
        if prefetch.asked_s is not None:
            at_stake_s = self.costs.prefill_s(prefetch.last * page - computed)
            patience_s = min(
                at_stake_s, max(_LEAST_FIND_WAIT_S, 4 * self.costs.find_s, at_stake_s / 20)
            )
            if now_s < prefetch.asked_s + patience_s:
                return self._wait(computed, prefetch.asked_s + patience_s)
        stop = min(stop, prefetch.next_arrived(computed // page) * page)
        while True:
            gate = prefetch.gate(computed // page)
            if gate is None or gate.start * page >= stop:
                break
            start = gate.start * page
            if not self._left_to_compute(prefetch, gate, computed, now_s):
                if start > computed:
                    stop = start
                    break
                assert gate.blocked_s is not None
                deadline_s = gate.blocked_s + self._recompute_s(gate)
                return self._wait(computed, deadline_s if now_s < deadline_s else inf)
        prefetch.front = -(-stop // page)
        return stop

    def end(self, prefetch: Prefetch) -> None:
        """Nothing more is to be loaded for a request."""
        self._prefetches.remove(prefetch)
        self._withdraw(prefetch)
        prefetch.asked_s = None

    def shed(self, order: Any) -> bool:
        """Take the pages of the last waiting request behind `order`; False if none has any."""
        held = [
            p for p in self._prefetches if p.hold is not None and not p.admitted and p.order > order
        ]
        if not held:
            return False
        self._withdraw(max(held, key=lambda p: p.order))
        return True

    # Decisions

    def _left_to_compute(
        self, prefetch: Prefetch, gate: Stretch, computed: int, now_s: float
    ) -> bool:
        """Whether computing does not wait for a stretch; if so, it is given up."""
        blocked = gate.start * self._page_tokens <= computed
        quicker = (gate.state == "todo" and self._pause.on) or self._expected_s(
            prefetch, gate
        ) > self.costs.prefill_s(gate.stop * self._page_tokens - computed)
        if blocked:
            if gate.blocked_s is None:
                gate.blocked_s = now_s
            quicker = quicker or now_s >= gate.blocked_s + self._recompute_s(gate)
        if not quicker or not self._give_up(prefetch, gate, renew=blocked):
            return False
        self._counts.cut_tokens += gate.num_blocks * self._page_tokens
        return True

    def _give_up(self, prefetch: Prefetch, gate: Stretch, *, renew: bool) -> bool:
        """Make sure that nothing more is written to the pages of a stretch."""
        if gate.state == "queued" and not self._cancel(gate):
            if not renew:
                return False
            assert prefetch.hold is not None
            try:
                start = max(gate.start, prefetch.hold.num_named)
                self._cache.renew(prefetch.hold, start, gate.stop)
            except OutOfPagesError:
                return False
        gate.state = "over"
        return True

    def _expected_s(self, prefetch: Prefetch, gate: Stretch) -> float:
        """When a stretch will have come: those queued before it and those behind it come first."""
        blocks = 0
        for load in self._loads.values():
            blocks += len(load.job.digests)
            if load.job is gate.load:
                return self.costs.load_s(blocks)
        for stretch in prefetch.open_stretches:
            if stretch.start < gate.start:
                break
            if stretch.state == "todo":
                blocks += stretch.num_blocks
        return self.costs.load_s(blocks)

    def _recompute_s(self, stretch: Stretch) -> float:
        return self.costs.prefill_s(stretch.num_blocks * self._page_tokens)

    def _wait(self, computed: int, until_s: float) -> int:
        self.wake_s = min(self.wake_s, until_s)
        return computed

    # Jobs

    def start(self) -> None:
        """Keep as much under way as a step may take, and something more."""
        if self._pause.on:
            return
        if self._unsorted:
            self._prefetches.sort(key=lambda p: (not p.admitted, p.order))
            self._unsorted = False
        ahead_s = sum(self.costs.load_s(len(job.digests)) for job in self._loads)
        enough_s = max(_LEAST_AHEAD_S, 1.5 * self.costs.step_s)
        for prefetch in self._prefetches:
            for stretch in prefetch.open_stretches:
                if ahead_s > enough_s and len(self._loads) > 1:
                    return
                if stretch.state != "todo" or self._comes_anyway(prefetch, stretch):
                    continue
                if prefetch.hold is None and not self._find_pages(prefetch):
                    return
                ahead_s += self.costs.load_s(stretch.num_blocks)
                self._start_load(prefetch, stretch)

    def _comes_anyway(self, prefetch: Prefetch, stretch: Stretch) -> bool:
        """Whether another request loads a stretch, or it is on the device already."""
        digest = prefetch.names.digests[stretch.stop - 1]
        return digest in self._loading or self._cache.has_block(digest)

    def _find_pages(self, prefetch: Prefetch) -> bool:
        """Pages for a request that waits, of those that running ones leave alone."""
        counts = self._cache.counts()
        end = prefetch.stretches[-1].stop
        match = self._cache.match_prefix(prefetch.names, end * self._page_tokens)
        lent = sum(len(p.hold.pages) for p in self._prefetches if p.hold and not p.admitted)
        wanted = end - match.num_blocks
        room = counts.free + counts.idle - counts.total // 8
        if lent + wanted > counts.total // 2 or wanted > room:
            return False
        try:
            prefetch.hold = self._cache.hold(match, end * self._page_tokens)
        except OutOfPagesError:
            return False
        return True

    def _start_load(self, prefetch: Prefetch, stretch: Stretch) -> None:
        assert prefetch.hold is not None
        # Some of its blocks may have come from others since the store was asked.
        stretch.start = max(stretch.start, prefetch.hold.num_named)
        if stretch.start >= stretch.stop:
            stretch.state = "over"
            return
        digests = prefetch.names.digests[stretch.start : stretch.stop]
        hold = self._cache.share(prefetch.hold, stretch.start, stretch.stop)
        job = self._blocks.load(digests, hold.pages)
        stretch.state, stretch.load = "queued", job
        self._loads[job] = _Load(job, prefetch, stretch, hold)
        self._loading.update(digests)

    def _cancel(self, stretch: Stretch) -> bool:
        """Take a queued stretch back if its load has not begun."""
        job: IoJob = stretch.load
        if not job.cancel():
            return False
        self._forget(self._loads[job])
        return True

    def _forget(self, load: _Load) -> None:
        del self._loads[load.job]
        self._loading.difference_update(load.job.digests)
        self._cache.release(load.hold)

    def _withdraw(self, prefetch: Prefetch) -> None:
        """Cancel loads and, of a request that waits, give the pages back."""
        for stretch in prefetch.stretches:
            if stretch.state == "queued":
                self._cancel(stretch)
            stretch.state = "todo"
        if prefetch.hold is not None and not prefetch.admitted:
            self._cache.release(prefetch.hold)
            prefetch.hold = None
            prefetch.arrived.clear()
            prefetch.taken.clear()

    def found(self, job: IoJob) -> None:
        """A look-up is over."""
        prefetch = self._finds.pop(job)
        self._pause.note(job.error)
        if job.error is not None:
            # Each of those that wait would take as long to fail.
            for other in [one for one in self._finds if one.cancel()]:
                self._finds.pop(other).asked_s = None
        if prefetch.asked_s is None:  # ended meanwhile
            return
        self.costs.observe_find(job.seconds)
        prefetch.found(job.found, self._batch)

    def loaded(self, job: IoJob) -> None:
        """A load is over."""
        load = self._loads[job]
        self._pause.note(job.error)
        prefetch, stretch = load.prefetch, load.stretch
        current = stretch.state == "queued" and stretch.load is job
        if current:
            stretch.state = "over"
            for block, good in enumerate(job.good, stretch.start):
                if good:
                    prefetch.arrived[block] = job.tier
        if job.error is None:
            self.costs.observe_load(len(job.digests), job.seconds)
            self._counts.loaded_bytes += sum(job.good) * self._page_bytes
            self._counts.failures += len(job.good) - sum(job.good)
        self._forget(load)
        if current and prefetch.over and not prefetch.admitted:
            self._publish_whole(prefetch)

    def _publish_whole(self, prefetch: Prefetch) -> None:
        """Let others use what has arrived for a request that still waits."""
        assert prefetch.hold is not None
        self.advance(prefetch, prefetch.hold.num_named * self._page_tokens)
