"""The names of one request's blocks, computed once and kept while the request lives."""

from collections.abc import Callable, Sequence

from inlay.core.block_hash import ROOT, chain

ChainFunction = Callable[[bytes, Sequence[int], int, bytes], list[bytes]]
"""`(namespace_key, token_ids, block_tokens, parent) -> digests`, as `core.block_hash.chain`."""


class BlockNames:
    """Digests of a growing run of tokens.

    Args:
        namespace_key: see `core.block_hash.Namespace.key`.
        page_tokens: tokens per block.
        hash_chain: computes digests; a native function gives the same bytes sooner.

    Attributes:
        digests: names of the leading full blocks, in order.
    """

    __slots__ = ("_chain", "_key", "_page_tokens", "digests")

    def __init__(
        self, namespace_key: bytes, page_tokens: int, hash_chain: ChainFunction = chain
    ) -> None:
        self._key = namespace_key
        self._page_tokens = page_tokens
        self._chain = hash_chain
        self.digests: list[bytes] = []

    @property
    def num_tokens(self) -> int:
        """Tokens that have a name."""
        return len(self.digests) * self._page_tokens

    def extend(self, token_ids: Sequence[int]) -> None:
        """Name the full blocks of the tokens after the first `num_tokens`.

        Cost: one hash per new block, about 1 us each.
        """
        parent = self.digests[-1] if self.digests else ROOT
        self.digests.extend(self._chain(self._key, token_ids, self._page_tokens, parent))
