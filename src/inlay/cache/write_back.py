"""Which pages are copied to the tiers behind the device, and when. Pure: no clock, no I/O."""

from collections.abc import Iterable, Sequence

from inlay.cache.config import WriteWhen

Named = tuple[bytes, bytes]
"""Digests of a block and of the one before it."""


class WriteBack:
    """Keeps track of named pages that no tier has a copy of.

    The page of a block never changes while it is named, so a copy may be taken at any time
    before `evicted`.

    Args:
        when: see `CacheConfig.write`.

    Attributes:
        lost: blocks that were to be copied but had to go before.
    """

    def __init__(self, when: WriteWhen) -> None:
        self._when = when
        self._unsaved: dict[int, Named] = {}
        self._queue: dict[int, Named] = {}
        self._saving: dict[int, Named] = {}
        self.lost = 0

    @property
    def waits_for_eviction(self) -> bool:
        """Whether `cooling` makes a difference."""
        return self._when == "evict" and bool(self._unsaved)

    @property
    def num_queued(self) -> int:
        """Pages that are to be copied now."""
        return len(self._queue)

    def stored(self, page_id: int, digest: bytes, parent: bytes) -> None:
        """A block that no tier is known to have can be reused from now on."""
        if self._when == "through":
            self._queue[page_id] = digest, parent
        else:
            self._unsaved[page_id] = digest, parent

    def reused(self, page_ids: Iterable[int]) -> None:
        """Another request uses these pages."""
        if self._when == "evict":
            return
        for page_id in page_ids:
            block = self._unsaved.pop(page_id, None)
            if block is not None:
                self._queue[page_id] = block

    def cooling(self, page_ids: Iterable[int]) -> None:
        """These pages are the next to be evicted."""
        if self.waits_for_eviction:
            self.wanted(page_ids)

    def wanted(self, page_ids: Iterable[int]) -> None:
        """The blocks in these pages will be used again, perhaps after they were evicted."""
        for page_id in page_ids:
            block = self._unsaved.pop(page_id, None)
            if block is not None:
                self._queue[page_id] = block

    def evicted(self, page_id: int) -> None:
        """The block is gone from its page; a copy that is being taken still becomes good."""
        queued = self._queue.pop(page_id, None)
        unsaved = self._unsaved.pop(page_id, None)
        self._saving.pop(page_id, None)
        if queued is not None or (unsaved is not None and self._when == "evict"):
            self.lost += 1

    def take(self, limit: int) -> list[tuple[int, Named]]:
        """Up to `limit` pages to copy now, parents before their children, with their blocks."""
        batch = [entry for entry, _ in zip(self._queue.items(), range(limit), strict=False)]
        for page_id, block in batch:
            del self._queue[page_id]
            self._saving[page_id] = block
        if self._when == "evict":  # those go first that others follow least
            batch.reverse()
        return batch

    def saved(self, page_ids: Sequence[int], *, good: bool) -> None:
        """The copies of a batch are there, or could not be made.

        Failed ones wait for another occasion: their next use, or that their pages are needed.
        """
        for page_id in page_ids:
            block = self._saving.pop(page_id, None)
            if block is not None and not good:
                self._unsaved[page_id] = block
