"""The tiers behind the device: what is loaded for whom, and what is copied there.

The step loop owns this, as it owns the `KvCache`: calls come from one thread and none of them
waits. Jobs run on the threads of `BlockStore`; `poll` takes their results.
"""

from collections.abc import Sequence
from math import inf

from inlay.cache.block_store import BlockStore
from inlay.cache.kv_cache import KvCache, PageHold
from inlay.cache.loader import Loader
from inlay.cache.saver import Saver
from inlay.cache.tier_counts import TierCounts
from inlay.cache.write_back import WriteBack
from inlay.core.clock import Clock

_BATCH_BYTES = 4 * 2**20
_MAX_BATCH_BLOCKS = 32


class Tiers:
    """Loads and copies of one instance.

    Each step calls `poll`, schedules with `loader`, and calls `start`.

    Args:
        cache: whose pages are filled and copied.
        write_back: the same that the cache tells of its pages.
        blocks: moves the bytes.
        page_bytes: of one page.

    Attributes:
        loader: what the scheduler asks.
        counts: totals.
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
        self._blocks = blocks
        self._write_back = write_back
        self._clock = clock
        self.counts = TierCounts()
        batch = max(1, min(_BATCH_BYTES // page_bytes, _MAX_BATCH_BLOCKS))
        self.loader = Loader(
            cache, blocks, page_bytes=page_bytes, batch=batch, counts=self.counts, clock=clock
        )
        self._saver = Saver(
            cache,
            write_back,
            blocks,
            page_bytes=page_bytes,
            batch=batch,
            costs=self.loader.costs,
            counts=self.counts,
            clock=clock,
        )

    @property
    def due(self) -> bool:
        """Whether `poll` has results to take, or a request has waited for long enough."""
        wake_s = self.loader.wake_s
        return bool(self._blocks.finished) or (wake_s != inf and self._clock.now() >= wake_s)

    @property
    def busy(self) -> bool:
        """Whether `due` turns true by itself."""
        return self.loader.busy or self._saver.busy or self.loader.wake_s != inf

    @property
    def sleep_s(self) -> float | None:
        """How long until a request will have waited for long enough; None: none waits so."""
        wake_s = self.loader.wake_s
        return None if wake_s == inf else max(0.0, wake_s - self._clock.now())

    def wait(self, timeout_s: float) -> None:
        """Sleep until there are results, at most so long."""
        self._blocks.wait(timeout_s)

    def poll(self) -> None:
        """Take the results of jobs. Before a step's scheduling."""
        while self._blocks.finished:
            job = self._blocks.finished.popleft()
            match job.kind:
                case "find":
                    self.loader.found(job)
                case "load":
                    self.loader.loaded(job)
                case "save":
                    self._saver.saved(job)
        self.loader.wake_s = inf

    def start(self) -> None:
        """Start what may be under way during a step. After its scheduling."""
        self.loader.start()
        self._saver.start()

    def holds(self) -> list[PageHold]:
        """Pages in use here, besides those of running requests; for audits."""
        return self.loader.holds()

    def keep(self, page_ids: Sequence[int]) -> None:
        """Copy the blocks in these pages, where no tier has them: they may be evicted soon."""
        self._write_back.wanted(page_ids)

    def flush(self, timeout_s: float) -> bool:
        """Copy what waits to be copied, or to be evicted; False if that takes longer.

        For the end of an instance: its pages go, and with them what no tier has.
        """
        end_s = self._clock.now() + timeout_s
        self._saver.cool()
        while True:
            self.poll()
            self._saver.start()
            if not self._saver.busy:
                return self._saver.done
            if not self._blocks.wait(end_s - self._clock.now()):
                return False

    def close(self) -> None:
        """End all jobs; the pages of those under way stay as they are until then."""
        self.loader.close()
        self._blocks.close()
        self.poll()
