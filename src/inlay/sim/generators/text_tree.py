"""Texts that go on from each other, and the names of their blocks.

A prompt is a path in a tree: a system prompt, documents, the turns of a conversation. Two prompts
share the blocks that end before their paths part.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inlay.sim.trace import Trace, blocks_of, runs, starts_of

EMPTY = -1
"""The text before all texts."""


class TextTree:
    """Texts by numbers. Each is a piece of so many tokens behind the text before it.

    Args:
        block_tokens: tokens of a block.
        names: the first name that it may give to a block; each text has some of its own.

    Attributes:
        names: the first one that it has not given.
    """

    def __init__(self, block_tokens: int, names: int = 0) -> None:
        self._block_tokens = block_tokens
        self.names = names
        self._parent = np.empty(0, np.int64)
        self._begin = np.empty(0, np.int64)
        self._end = np.empty(0, np.int64)
        self._names = np.empty(0, np.int64)

    def add(
        self,
        before: NDArray[np.int64],
        tokens: NDArray[np.int64],
        names: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """New texts: `tokens` (N,) behind the texts `before` (N,), or behind `EMPTY`.

        Args:
            names: of the first blocks of each, (N,), where they follow from what the text is; it
                takes one for each block that it fills or begins.
        """
        first = len(self._parent)
        begin = self.tokens(before)
        end = begin + tokens
        if names is None:
            taken = end // self._block_tokens - begin // self._block_tokens + 1
            starts = self.names + starts_of(taken)
            names, self.names = starts[:-1], int(starts[-1])
        self._parent = np.concatenate([self._parent, before])
        self._begin = np.concatenate([self._begin, begin])
        self._end = np.concatenate([self._end, end])
        self._names = np.concatenate([self._names, names])
        return np.arange(first, len(self._parent))

    def tokens(self, texts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each whole text, from its first piece on."""
        return np.append(self._end, 0)[texts]

    def trace(
        self,
        texts: NDArray[np.int64],
        *,
        arrival_s: NDArray[np.float64],
        output_tokens: ArrayLike,
        session: ArrayLike,
        groups: tuple[str, ...],
    ) -> Trace:
        """Requests with these prompts, (R,), sorted by their arrival already."""
        # A text owns the blocks that end in it, and the partial block at its end.
        block_tokens, names = self._block_tokens, self._names
        whole = self._end // block_tokens - self._begin // block_tokens
        partial = self._end % block_tokens > 0
        tokens = self.tokens(texts)
        starts = starts_of(blocks_of(tokens, block_tokens))
        blocks = np.empty(starts[-1], np.uint64)
        cut = partial[texts]
        blocks[starts[1:][cut] - 1] = (names + whole)[texts[cut]]
        begins = starts[:-1]
        while len(texts):
            counts = whole[texts]
            places = runs(begins + self._begin[texts] // block_tokens, counts)
            blocks[places] = runs(names[texts], counts)
            behind = self._parent[texts] != EMPTY
            texts, begins = self._parent[texts[behind]], begins[behind]
        return Trace(
            arrival_s=arrival_s,
            input_tokens=tokens.astype(np.int32),
            output_tokens=np.asarray(output_tokens),
            block_starts=starts,
            blocks=blocks,
            block_tokens=block_tokens,
            session=np.asarray(session),
            groups=groups,
        )
