"""The tiers behind the device: what is loaded for whom, and what is copied there.

The step loop owns this, as it owns the `KvCache`: calls come from one thread and none of them
waits. Jobs run on the threads of `BlockStore`; `poll` takes their results.
"""

import logging
from dataclasses import dataclass
from math import inf
from typing import Any

from inlay.cache.block_names import BlockNames
from inlay.cache.block_store import BlockStore, IoJob
from inlay.cache.kv_cache import KvCache, PageHold
from inlay.cache.load_costs import LoadCosts
from inlay.cache.prefetch import Prefetch, Stretch
from inlay.cache.write_back import WriteBack
from inlay.core.clock import Clock
from inlay.core.errors import InlayError, OutOfPagesError

log = logging.getLogger(__name__)

_BATCH_BYTES = 4 * 2**20
_MAX_BATCH_BLOCKS = 32
_LEAST_FIND_WAIT_S = 0.005
_LEAST_AHEAD_S = 0.02
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


@dataclass(slots=True)
class TierCounts:
    """Totals since the start.

    Attributes:
        loaded_bytes, written_bytes: of pages that were moved.
        cut_tokens: tokens that were computed although a tier had them, because that was quicker.
        failures: calls of the store that failed, and blocks that were not as they must be.
        lost_blocks: blocks that had to give up their pages before they were copied.
    """

    loaded_bytes: int = 0
    written_bytes: int = 0
    cut_tokens: int = 0
    failures: int = 0
    lost_blocks: int = 0


@dataclass(slots=True)
class _Pause:
    """How long a store that failed is left alone, doubling from failure to failure."""

    seconds: float = _FIRST_PAUSE_S
    until_s: float = -inf

    def begin(self, now_s: float) -> None:
        self.until_s = now_s + self.seconds
        self.seconds = min(2 * self.seconds, _LONGEST_PAUSE_S)

    def works(self) -> None:
        self.seconds = _FIRST_PAUSE_S


@dataclass(slots=True, eq=False)
class _Load:
    """A stretch whose pages are being filled; `hold` keeps them from other use meanwhile."""

    job: IoJob
    prefetch: Prefetch
    stretch: Stretch
    hold: PageHold


class Tiers:
    """See the module.

    A request's life here: `begin` when it is queued; `admit` when it runs; then before each of
    its steps `advance` and `limit`; `end` at any time.

    Args:
        cache: whose pages are filled and copied.
        write_back: the same that the cache tells of its pages.
        blocks: moves the bytes.
        page_bytes: of one page.
    """

    def __init__(
        self,
        cache: KvCache,
        write_back: WriteBack,
        blocks: BlockStore,
        *,
        page_bytes: int,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._write_back = write_back
        self._blocks = blocks
        self._clock = clock
        self._page_tokens = cache.page_tokens
        self._page_bytes = page_bytes
        self.costs = LoadCosts(page_bytes, cache.page_tokens)
        self.counts = TierCounts()
        self._batch = max(1, min(_BATCH_BYTES // page_bytes, _MAX_BATCH_BLOCKS))
        self._prefetches: list[Prefetch] = []
        self._finds: dict[IoJob, Prefetch] = {}
        self._loads: dict[IoJob, _Load] = {}
        self._loading: set[bytes] = set()
        self._save: IoJob | None = None
        self._pause = _Pause()
        self._wake_s = inf
        self._unsorted = False

    # For the step loop

    @property
    def due(self) -> bool:
        """Whether `poll` has results to take, or a request has waited for long enough."""
        return bool(self._blocks.finished) or (
            self._wake_s != inf and self._clock.now() >= self._wake_s
        )

    @property
    def busy(self) -> bool:
        """Whether `due` turns true by itself."""
        return bool(self._finds or self._loads or self._save) or self._wake_s != inf

    @property
    def sleep_s(self) -> float | None:
        """How long until a request will have waited for long enough; None: none waits so."""
        return None if self._wake_s == inf else max(0.0, self._wake_s - self._clock.now())

    def wait(self, timeout_s: float) -> None:
        """Sleep until there are results, at most so long."""
        self._blocks.wait(timeout_s)

    def poll(self) -> None:
        """Take the results of jobs, and start others. Before a step's scheduling."""
        while self._blocks.finished:
            job = self._blocks.finished.popleft()
            match job.kind:
                case "find":
                    self._found(job)
                case "load":
                    self._loaded(job)
                case "save":
                    self._saved(job)
        self._wake_s = inf

    def start(self) -> None:
        """Start what may be under way during a step. After its scheduling."""
        if self._clock.now() < self._pause.until_s:
            return
        self._start_loads()
        self._start_save()

    def holds(self) -> list[PageHold]:
        """Pages in use here, besides those of running requests; for audits."""
        waiting = [p.hold for p in self._prefetches if p.hold is not None and not p.admitted]
        return waiting + [load.hold for load in self._loads.values()]

    def flush(self, timeout_s: float) -> bool:
        """Copy what waits to be copied; False if that takes longer."""
        end_s = self._clock.now() + timeout_s
        while True:
            self.poll()
            self.start()
            if self._save is None:
                return not self._write_back.num_queued
            if not self._blocks.wait(end_s - self._clock.now()):
                return False

    def close(self) -> None:
        """End all jobs; the pages of those under way stay as they are until then."""
        for prefetch in list(self._prefetches):
            self.end(prefetch)
        self._blocks.close()
        self.poll()

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
        if first >= last or now_s < self._pause.until_s:
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
        quicker = (gate.state == "todo" and now_s < self._pause.until_s) or self._expected_s(
            prefetch, gate
        ) > self.costs.prefill_s(gate.stop * self._page_tokens - computed)
        if blocked:
            if gate.blocked_s is None:
                gate.blocked_s = now_s
            quicker = quicker or now_s >= gate.blocked_s + self._recompute_s(gate)
        if not quicker or not self._give_up(prefetch, gate, renew=blocked):
            return False
        self.counts.cut_tokens += gate.num_blocks * self._page_tokens
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
        """When a stretch will have come: those that are queued and those behind it come first."""
        blocks = sum(load.stretch.num_blocks for load in self._loads.values())
        for stretch in prefetch.open_stretches:
            if stretch.start < gate.start:
                break
            if stretch.state == "todo":
                blocks += stretch.num_blocks
        return self.costs.load_s(blocks)

    def _recompute_s(self, stretch: Stretch) -> float:
        return self.costs.prefill_s(stretch.num_blocks * self._page_tokens)

    def _wait(self, computed: int, until_s: float) -> int:
        self._wake_s = min(self._wake_s, until_s)
        return computed

    # Jobs

    def _start_loads(self) -> None:
        """Keep as much under way as a few steps may take."""
        if self._unsorted:
            self._prefetches.sort(key=lambda p: (not p.admitted, p.order))
            self._unsorted = False
        ahead_s = sum(self.costs.load_s(load.stretch.num_blocks) for load in self._loads.values())
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

    def _found(self, job: IoJob) -> None:
        prefetch = self._finds.pop(job)
        self._note(job)
        if prefetch.asked_s is None:  # ended meanwhile
            return
        self.costs.observe_find(job.seconds)
        prefetch.found(job.found, self._batch)

    def _loaded(self, job: IoJob) -> None:
        load = self._loads[job]
        self._note(job)
        prefetch, stretch = load.prefetch, load.stretch
        current = stretch.state == "queued" and stretch.load is job
        if current:
            stretch.state = "over"
            good = [block for block, ok in enumerate(job.good, stretch.start) if ok]
            prefetch.arrived.update(good)
        if job.error is None:
            self.costs.observe_load(stretch.num_blocks, job.seconds)
            self.counts.loaded_bytes += sum(job.good) * self._page_bytes
            self.counts.failures += len(job.good) - sum(job.good)
        self._forget(load)
        if current and prefetch.over and not prefetch.admitted:
            self._publish_whole(prefetch)

    def _publish_whole(self, prefetch: Prefetch) -> None:
        """Let others use what has arrived for a request that still waits."""
        assert prefetch.hold is not None
        self.advance(prefetch, prefetch.hold.num_named * self._page_tokens)

    def _start_save(self) -> None:
        if self._save is not None:
            return
        if self._write_back.waits_for_eviction:
            counts = self._cache.counts()
            margin = max(self._batch, counts.total // 8)
            if counts.free < margin:
                self._write_back.cooling(self._cache.coldest(margin))
        batch = self._write_back.take(self._batch)
        if batch:
            page_ids = [page_id for page_id, _ in batch]
            self._cache.pin(page_ids)
            self._save = self._blocks.save([digest for _, digest in batch], page_ids)

    def _saved(self, job: IoJob) -> None:
        self._save = None
        self._note(job)
        self._write_back.saved(job.page_ids, good=job.error is None)
        self._cache.unpin(job.page_ids)
        self.counts.lost_blocks = self._write_back.lost
        if job.error is None:
            self.counts.written_bytes += len(job.page_ids) * self._page_bytes

    def _note(self, job: IoJob) -> None:
        """After a failure the store is left alone for a while; requests are computed."""
        if job.error is None:
            self._pause.works()
            return
        self.counts.failures += 1
        now_s = self._clock.now()
        if now_s >= self._pause.until_s:
            self._pause.begin(now_s)
            what = job.error if isinstance(job.error, InlayError) else repr(job.error)
            log.warning(
                "the tiers behind the device fail (%s): without them for %g s",
                what,
                self._pause.until_s - now_s,
            )
