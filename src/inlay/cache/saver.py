"""Copies pages to the tiers behind the device, one batch at a time. Owned by `Tiers`."""

from inlay.cache.block_store import BlockStore, IoJob
from inlay.cache.kv_cache import KvCache
from inlay.cache.load_costs import LoadCosts
from inlay.cache.tier_counts import TierCounts
from inlay.cache.write_back import WriteBack
from inlay.core.clock import Clock
from inlay.core.pause import Pause


class Saver:
    """Pins pages, has them copied, and lets them go.

    Args:
        cache: whose pages are copied.
        write_back: says which; the same that the cache tells of its pages.
        blocks: moves the bytes.
        page_bytes: of one page.
        batch: blocks of one call.
        costs: say what the blocks are worth.
    """

    def __init__(
        self,
        cache: KvCache,
        write_back: WriteBack,
        blocks: BlockStore,
        *,
        page_bytes: int,
        batch: int,
        costs: LoadCosts,
        counts: TierCounts,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._write_back = write_back
        self._blocks = blocks
        self._page_bytes = page_bytes
        self._batch = batch
        self._costs = costs
        self._counts = counts
        self._pause = Pause("writing to a tier", clock, counts.failed)
        self._job: IoJob | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._job is not None

    @property
    def done(self) -> bool:
        """Whether nothing waits to be copied."""
        return self._job is None and not self._write_back.num_queued

    def start(self) -> None:
        """Copy what is to be copied now, if nothing is under way."""
        if self._job is not None or self._pause.on:
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
            self._job = self._blocks.save(
                [digest for _, (digest, _) in batch],
                page_ids,
                [parent for _, (_, parent) in batch],
                round(1e6 * self._costs.prefill_s(self._cache.page_tokens)),
            )

    def saved(self, job: IoJob) -> None:
        """A copy is over."""
        self._job = None
        self._pause.note(job.error)
        self._write_back.saved(job.page_ids, good=job.error is None)
        self._cache.unpin(job.page_ids)
        self._counts.lost_blocks = self._write_back.lost
        if job.error is None:
            self._counts.written_bytes += len(job.page_ids) * self._page_bytes

    def cool(self) -> None:
        """All idle pages are about to go."""
        self._write_back.cooling(self._cache.coldest(self._cache.num_pages))
