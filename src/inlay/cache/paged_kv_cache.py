"""A KV cache in one pool of pages on one device."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, pairwise

from inlay.cache.block_names import BlockNames, ChainFunction
from inlay.cache.events import BlockRemoved, BlockStored, KvEvent
from inlay.cache.eviction import EvictionPolicy, LruEviction
from inlay.cache.index import PrefixIndex
from inlay.cache.kv_cache import KvCache, PageCounts, PageHold, PrefixMatch
from inlay.cache.pages import PagePool
from inlay.cache.write_back import WriteBack
from inlay.core.block_hash import ROOT, chain
from inlay.core.errors import OutOfPagesError


class PagedKvCache(KvCache):
    """See `KvCache` for the contract.

    Why a parent always outlives its children: whoever publishes a block holds all blocks
    before it, and `publish` swaps a page for the indexed one of the same content, so a used
    child's ancestors are used too. `release` lets pages go from the end to the start, so among
    idle pages a child always comes before its parent.

    Args:
        num_pages: pages in the pool.
        page_tokens: tokens per page.
        namespace_key: salt, fingerprint of an adapter, weights -> key of block names, see
            `core.block_hash.Namespace`.
        prefix: reuse equal prefixes; if False nothing is ever named.
        eviction: order of eviction; least recently used by default.
        hash_chain: computes digests.

    Attributes:
        write_back: told what becomes of named pages; set while there are none.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_tokens: int,
        namespace_key: Callable[[str, str, str], bytes],
        prefix: bool = True,
        eviction: EvictionPolicy | None = None,
        hash_chain: ChainFunction = chain,
    ) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self._namespace_key = namespace_key
        self._key: bytes | None = None  # without salt and adapter
        self.reuses_prefixes = prefix
        self._hash_chain = hash_chain
        self._pool = PagePool(num_pages)
        self._index = PrefixIndex()
        self._idle = LruEviction() if eviction is None else eviction
        self._events: list[KvEvent] | None = None
        self.write_back: WriteBack | None = None
        self._pinned: Counter[int] = Counter()
        self._kept: set[int] = set()  # that only pins keep from being free

    def names(self, salt: str = "", adapter: str = "", weights: str = "") -> BlockNames:
        """A new, empty list of block names."""
        if salt or adapter or weights:
            key = self._namespace_key(salt, adapter, weights)
        else:
            if self._key is None:
                self._key = self._namespace_key("", "", "")
            key = self._key
        return BlockNames(key, self.page_tokens, self._hash_chain)

    def forget_keys(self) -> None:
        """Ask anew for the key of names that are made from now on."""
        self._key = None

    def match_prefix(self, names: BlockNames, max_tokens: int) -> PrefixMatch:
        """Find the longest reusable prefix. Changes nothing."""
        blocks = 0
        if self.reuses_prefixes:
            blocks = self._index.longest_match(names.digests, max_tokens // self.page_tokens)
        return PrefixMatch(names, blocks, blocks * self.page_tokens)

    def hold(self, match: PrefixMatch, num_tokens: int) -> PageHold:
        """Take the matched pages, and new ones up to `num_tokens` tokens in all."""
        new_pages = self._pages_for(num_tokens) - match.num_blocks
        if new_pages > self._pool.num_free + len(self._idle):
            raise self._out_of_pages(new_pages)
        hold = PageHold(num_named=match.num_blocks)
        for digest in match.names.digests[: match.num_blocks]:
            page_id = self._index.page_of(digest)
            assert page_id is not None, "a PrefixMatch was kept while the cache changed"
            self._retain(page_id)
            hold.pages.append(page_id)
        try:
            self.reserve(hold, num_tokens)
        except OutOfPagesError:
            self.release(hold)
            raise
        if self.write_back is not None:
            self.write_back.reused(hold.pages[: match.num_blocks])
        return hold

    def reserve(self, hold: PageHold, num_tokens: int) -> None:
        """Add pages so that the hold has room for `num_tokens` tokens in all."""
        new_pages = self._pages_for(num_tokens) - len(hold.pages)
        if new_pages <= 0:
            return
        self._make_free(new_pages)
        for _ in range(new_pages):
            hold.pages.append(self._pool.take())

    def publish(
        self, hold: PageHold, names: BlockNames, num_tokens: int, *, copied: bool = False
    ) -> None:
        """Let others use the full blocks among the first `num_tokens` computed tokens."""
        if not self.reuses_prefixes:
            return
        for block in range(hold.num_named, num_tokens // self.page_tokens):
            digest = names.digests[block]
            mine, indexed = hold.pages[block], self._index.page_of(digest)
            if indexed is None:
                parent = names.digests[block - 1] if block else ROOT
                self._index.add(digest, mine, parent)
                if self._events is not None:
                    self._events.append(BlockStored(digest, parent))
                if self.write_back is not None and not copied:
                    self.write_back.stored(mine, digest, parent)
            elif indexed != mine:
                self._swap(hold, block, indexed)
            hold.num_named = block + 1

    def adopt(self, hold: PageHold, names: BlockNames, max_tokens: int) -> int:
        """Put pages that others published meanwhile in place of the hold's own."""
        stop = min(max_tokens // self.page_tokens, len(hold.pages), len(names.digests))
        for block in range(hold.num_named, stop):
            indexed = self._index.page_of(names.digests[block])
            if indexed is None:
                break
            self._swap(hold, block, indexed)
            hold.num_named = block + 1
        return hold.num_named * self.page_tokens

    def share(self, hold: PageHold, start: int, stop: int) -> PageHold:
        """A second hold of the pages of blocks start..stop, which have no name yet."""
        assert start >= hold.num_named, "named pages are not for writing"
        pages = hold.pages[start:stop]
        for page_id in pages:
            self._pool.retain(page_id)
        return PageHold(pages)

    def renew(self, hold: PageHold, start: int, stop: int) -> None:
        """Put new pages in place of those of blocks start..stop, which have no name yet."""
        assert start >= hold.num_named, "named pages are not to be renewed"
        self._make_free(stop - start)
        for block in range(start, stop):
            old, hold.pages[block] = hold.pages[block], self._pool.take()
            self._drop(old)

    def pin(self, page_ids: Sequence[int]) -> None:
        """Keep the content of pages until `unpin`."""
        self._pinned.update(page_ids)

    def unpin(self, page_ids: Sequence[int]) -> None:
        """Let pinned pages go."""
        for page_id in page_ids:
            self._pinned[page_id] -= 1
            if self._pinned[page_id]:
                continue
            del self._pinned[page_id]
            if page_id in self._kept:
                self._kept.discard(page_id)
                self._drop(page_id)

    def coldest(self, limit: int) -> list[int]:
        """Idle pages, those that would be evicted next, first."""
        return list(islice(self._idle, limit))

    def cool(self, names: BlockNames) -> list[int]:
        """Have the last blocks of a chain evicted before all others."""
        pages: list[int] = []
        for digest in reversed(names.digests):
            page_id = self._index.page_of(digest)
            if page_id is None:
                continue
            followers = self._index.num_children(digest)
            if self._pool.references(page_id) or followers > bool(pages):
                break
            pages.append(page_id)
        for page_id in reversed(pages):
            self._idle.discard(page_id)
            self._idle.add_first(page_id)
        return pages

    def warm(self, names: BlockNames) -> int:
        """Have the blocks of a chain evicted last, and return how many there are."""
        found = self._index.longest_match(names.digests, len(names.digests))
        for digest in reversed(names.digests[:found]):
            page_id = self._index.page_of(digest)
            assert page_id is not None
            if not self._pool.references(page_id):
                self._idle.discard(page_id)
                self._idle.add(page_id)
        return found

    def has_block(self, digest: bytes) -> bool:
        """Whether a block can be reused."""
        return self._index.page_of(digest) is not None

    def fork(self, hold: PageHold, num_tokens: int) -> PageHold:
        """A second hold that shares the full pages of the first `num_tokens` tokens."""
        pages = hold.pages[: num_tokens // self.page_tokens]
        for page_id in pages:
            self._pool.retain(page_id)
        return PageHold(pages, min(hold.num_named, len(pages)))

    def release(self, hold: PageHold) -> None:
        """Give all pages back, children before parents."""
        for page_id in reversed(hold.pages):
            self._drop(page_id)
        del hold.pages[:]
        hold.num_named = 0

    def reset(self) -> int:
        """Forget every block that nobody uses, and return how many."""
        count = len(self._idle)
        for _ in range(count):
            self._evict()
        return count

    def record_events(self, on: bool) -> None:
        """Keep what happens to blocks for `take_events` from now on, or no longer."""
        self._events = [] if on else None

    def take_events(self) -> list[KvEvent]:
        """What was stored and removed since the last call."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def digests(self) -> bytes:
        """The names of all blocks that can be reused, joined, parents before their children."""
        return self._index.digests()

    def counts(self) -> PageCounts:
        """Where the pages are."""
        pool = self._pool
        return PageCounts(
            free=pool.num_free, idle=pool.num_idle, used=pool.num_used, total=pool.num_pages
        )

    def audit(self, holds: Iterable[PageHold]) -> None:
        """Check every count and link, given all living holds."""
        self._pool.audit()
        self._index.audit()
        held = Counter(page for hold in holds for page in hold.pages)
        held.update(self._kept)
        assert self._kept <= self._pinned.keys()
        assert all(count > 0 for count in self._pinned.values())
        for page_id in range(self.num_pages):
            assert self._pool.references(page_id) == held[page_id], f"page {page_id} leaked"
        idle = list(self._idle)
        assert len(idle) == self._pool.num_idle
        position = {page: order for order, page in enumerate(idle)}
        for page in idle:
            assert self._index.holds_block(page) and held[page] == 0
        for hold in holds:
            for before, page in pairwise(hold.pages[: hold.num_named]):
                assert self._index.parent_page(page) == before, "a hold with foreign blocks"
        for page in idle:
            parent = self._index.parent_page(page)
            if parent is not None and parent in position:
                assert position[page] < position[parent], "a parent would go before its child"

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_tokens)

    def _make_free(self, num_pages: int) -> None:
        """Evict until so many pages are free."""
        to_evict = num_pages - self._pool.num_free
        if to_evict <= 0:
            return
        if to_evict > len(self._idle) - self._num_pinned_idle():
            raise self._out_of_pages(num_pages)
        while self._pool.num_free < num_pages:
            self._evict()

    def _num_pinned_idle(self) -> int:
        """Pages whose eviction would free none now."""
        return sum(1 for page_id in self._pinned if self._pool.references(page_id) == 0)

    def _swap(self, hold: PageHold, block: int, page_id: int) -> None:
        """Let a hold use another page of the same content."""
        self._retain(page_id)
        mine, hold.pages[block] = hold.pages[block], page_id
        self._drop(mine)

    def _retain(self, page_id: int) -> None:
        if self._pool.retain(page_id):
            self._idle.discard(page_id)

    def _drop(self, page_id: int) -> None:
        if self._pool.drop(page_id):
            if self._index.holds_block(page_id):
                self._idle.add(page_id)
            else:
                self._put_back(page_id)

    def _evict(self) -> None:
        page_id = self._idle.pop()
        digest = self._index.remove_page(page_id)
        if self._events is not None:
            self._events.append(BlockRemoved(digest))
        if self.write_back is not None:
            self.write_back.evicted(page_id)
        self._put_back(page_id)

    def _put_back(self, page_id: int) -> None:
        """Nobody needs what is in a page, unless it is pinned."""
        if page_id in self._pinned:
            self._pool.retain(page_id)
            self._kept.add(page_id)
        else:
            self._pool.put_back(page_id)

    def _out_of_pages(self, new_pages: int) -> OutOfPagesError:
        return OutOfPagesError(
            f"{new_pages} pages are needed; of {self.num_pages} only {self._pool.num_free} are "
            f"free and {len(self._idle)} can be evicted"
        )
