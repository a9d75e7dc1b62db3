"""The contract between an engine and its KV cache: which pages belong to whom."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from inlay.cache.block_names import BlockNames
from inlay.cache.events import KvEvent


@dataclass(frozen=True)
class PrefixMatch:
    """Leading blocks of a prompt whose KV is there.

    Attributes:
        names: the prompt's block names.
        num_blocks: how many of them matched.
        num_tokens: tokens in these blocks.
    """

    names: BlockNames
    num_blocks: int
    num_tokens: int


@dataclass(slots=True, eq=False)
class PageHold:
    """Pages that one sequence of tokens occupies, in order. Made and changed by a `KvCache`.

    Attributes:
        pages: page ids (C int, 4 bytes each); token t lies in page `pages[t // page_tokens]`.
        num_named: leading pages whose blocks are in the prefix index.
    """

    pages: "array[int]" = field(default_factory=lambda: array("i"))
    num_named: int = 0


@dataclass(frozen=True, kw_only=True)
class PageCounts:
    """Where the pages are; the first three add up to `total`.

    Attributes:
        used: held by at least one sequence, or pinned when their blocks were evicted.
        idle: hold a named block, nobody uses them; evicted when needed.
    """

    free: int
    idle: int
    used: int
    total: int


class KvCache(ABC):
    """Pages of one instance, and the blocks in them that may be used again.

    A sequence's life: `match_prefix` (changes nothing), `hold` (now the pages are its own),
    then per step `reserve` room for the tokens about to be computed and, once they are,
    `publish` full blocks; `release` at the end, in any state. Between `hold` and `release`
    no page of the hold is evicted or given to another sequence.

    Only full blocks are ever shared, and nobody writes to a published page, so no page has to
    be copied. `publish` may replace a page of the hold by another one with the same content;
    callers read `PageHold.pages` anew for each step.

    A named block is there only while its parent is: children are evicted before parents.

    Calls are not thread-safe; one engine step loop owns the cache.
    """

    page_tokens: int
    num_pages: int
    reuses_prefixes: bool
    """Whether `names` and `publish` have any effect; if not, callers may leave them out."""

    @abstractmethod
    def names(self, salt: str = "", adapter: str = "", weights: str = "") -> BlockNames:
        """A new, empty list of block names; sequences reuse each other's KV under equal salt,
        fingerprint of an adapter, and weights, as `Namespace.weights` names them (empty: those that
        compute now).
        """

    @abstractmethod
    def match_prefix(self, names: BlockNames, max_tokens: int) -> PrefixMatch:
        """Find the longest reusable prefix, in whole blocks. Changes nothing.

        Args:
            names: names of the prompt's blocks.
            max_tokens: upper limit of the match; an engine passes one less than the prompt's
                length, since at least one token must be computed to get logits.

        Cost: O(log blocks), no allocation of pages.
        """

    @abstractmethod
    def hold(self, match: PrefixMatch, num_tokens: int) -> PageHold:
        """Take the matched pages, and new ones up to `num_tokens` tokens in all.

        Raises:
            OutOfPagesError: free and idle pages do not suffice; nothing has changed.

        Cost: O(pages of the hold).
        """

    @abstractmethod
    def reserve(self, hold: PageHold, num_tokens: int) -> None:
        """Add pages so that the hold has room for `num_tokens` tokens in all.

        Raises:
            OutOfPagesError: free and idle pages do not suffice; nothing has changed.

        Cost: O(pages added), evicting idle pages where none is free.
        """

    @abstractmethod
    def publish(
        self, hold: PageHold, names: BlockNames, num_tokens: int, *, copied: bool = False
    ) -> None:
        """Let others use the full blocks among the first `num_tokens` computed tokens.

        Args:
            names: covers at least these blocks.
            copied: the blocks that are new came from another tier, which has them still.

        Cost: O(blocks that are new).
        """

    @abstractmethod
    def adopt(self, hold: PageHold, names: BlockNames, max_tokens: int) -> int:
        """Put pages that others published meanwhile in place of the hold's own.

        Goes from the hold's first unnamed block on as far as the blocks are there, and not
        beyond `max_tokens` or the end of the hold.

        Returns:
            Tokens of the hold's named blocks.

        Cost: O(blocks that are there).
        """

    @abstractmethod
    def share(self, hold: PageHold, start: int, stop: int) -> PageHold:
        """A second hold of the pages of blocks start..stop, which have no name yet.

        Whoever lets something write to these pages from outside holds them so until it ends.
        """

    @abstractmethod
    def renew(self, hold: PageHold, start: int, stop: int) -> None:
        """Put new pages in place of those of blocks start..stop, which have no name yet.

        Raises:
            OutOfPagesError: free and idle pages do not suffice; nothing has changed.
        """

    @abstractmethod
    def pin(self, page_ids: Sequence[int]) -> None:
        """Keep the content of pages until `unpin`, whatever becomes of their blocks and holds.

        For those who read pages from outside. Blocks in pinned pages are evicted in their turn,
        but the pages are not used again before they are unpinned as often as they were pinned.
        """

    @abstractmethod
    def unpin(self, page_ids: Sequence[int]) -> None:
        """Let pinned pages go."""

    @abstractmethod
    def coldest(self, limit: int) -> list[int]:
        """Idle pages, those that would be evicted next, first; at most `limit`."""

    @abstractmethod
    def cool(self, names: BlockNames) -> list[int]:
        """Have the last blocks of a chain evicted before all others.

        As far back as nobody uses them and no other chain goes through them.

        Returns:
            Their pages, in the order in which they would go.
        """

    @abstractmethod
    def warm(self, names: BlockNames) -> int:
        """Have the blocks of a chain evicted last, and return how many there are."""

    @abstractmethod
    def has_block(self, digest: bytes) -> bool:
        """Whether a block can be reused."""

    @abstractmethod
    def fork(self, hold: PageHold, num_tokens: int) -> PageHold:
        """A second hold that shares the pages of the first `num_tokens // page_tokens` blocks.

        The rest, less than a block, must be computed again by the new holder.
        """

    @abstractmethod
    def release(self, hold: PageHold) -> None:
        """Give all pages back; the hold is empty afterwards. Releasing twice does nothing."""

    @abstractmethod
    def reset(self) -> int:
        """Forget every block that nobody uses, and return how many."""

    @abstractmethod
    def record_events(self, on: bool) -> None:
        """Keep what happens to blocks for `take_events` from now on, or no longer.

        What has been kept so far is dropped.
        """

    @abstractmethod
    def take_events(self) -> list[KvEvent]:
        """What was stored and removed since the last call; empty unless events are recorded."""

    @abstractmethod
    def digests(self) -> bytes:
        """The names of all blocks that can be reused, joined, parents before their children.

        Cost: O(blocks), about 10 ms for a million.
        """

    @abstractmethod
    def counts(self) -> PageCounts:
        """Where the pages are. O(1)."""

    @abstractmethod
    def audit(self, holds: Iterable[PageHold]) -> None:
        """Check every count and link, given all living holds. O(pages); for tests."""
