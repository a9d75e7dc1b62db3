"""Which page holds which block. Knows neither references nor eviction order."""

from collections.abc import Sequence

from inlay.core.block_hash import ROOT


class PrefixIndex:
    """Maps block digests to pages and back.

    The index is closed under prefixes: a block is only there while its parent is. Adding a
    child before its parent, or removing a parent before its children, is a bug of the caller.

    Cost: O(1) per call, `longest_match` O(log blocks).
    """

    def __init__(self) -> None:
        self._pages: dict[bytes, int] = {}
        self._blocks: dict[int, tuple[bytes, bytes]] = {}
        self._children: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def page_of(self, digest: bytes) -> int | None:
        """The page that holds a block, or None."""
        return self._pages.get(digest)

    def holds_block(self, page_id: int) -> bool:
        """Whether a page holds a named block."""
        return page_id in self._blocks

    def add(self, digest: bytes, page_id: int, parent: bytes) -> None:
        """Name the block in a page; `parent` is the digest before it, `ROOT` for the first."""
        self._pages[digest] = page_id
        self._blocks[page_id] = (digest, parent)
        self._children[parent] = self._children.get(parent, 0) + 1

    def remove_page(self, page_id: int) -> bytes:
        """Forget the block in a page and return its digest."""
        digest, parent = self._blocks[page_id]
        assert digest not in self._children, f"block {digest.hex()} goes before its children"
        del self._blocks[page_id]
        del self._pages[digest]
        siblings = self._children[parent] - 1
        if siblings:
            self._children[parent] = siblings
        else:
            del self._children[parent]
        return digest

    def num_children(self, digest: bytes) -> int:
        """How many blocks follow a block."""
        return self._children.get(digest, 0)

    def longest_match(self, digests: Sequence[bytes], max_blocks: int) -> int:
        """How many leading blocks of a chain are there, at most `max_blocks`.

        Being closed under prefixes allows a binary search.
        """
        found, beyond = 0, min(len(digests), max_blocks) + 1
        while beyond - found > 1:
            middle = (found + beyond) // 2
            if digests[middle - 1] in self._pages:
                found = middle
            else:
                beyond = middle
        return found

    def parent_page(self, page_id: int) -> int | None:
        """The page of the block before the one in `page_id`; None for a first block."""
        return self._pages.get(self._blocks[page_id][1])

    def digests(self) -> bytes:
        """All digests, joined, parents before their children. O(blocks).

        They are in the order in which they were added: a block comes after its parent, and if the
        parent went and came again, the block had gone before it.
        """
        return b"".join(self._pages)

    def audit(self) -> None:
        """Check both directions and the parent links. O(blocks); for tests."""
        assert len(self._pages) == len(self._blocks)
        children: dict[bytes, int] = {}
        for page_id, (digest, parent) in self._blocks.items():
            assert self._pages[digest] == page_id
            assert parent in self._pages or not any(parent), "a block without its parent"
            children[parent] = children.get(parent, 0) + 1
        seen = {ROOT}
        for digest, page_id in self._pages.items():
            assert self._blocks[page_id][1] in seen, "a child that was added before its parent"
            seen.add(digest)
        assert children == self._children
