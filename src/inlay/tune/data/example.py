"""What training reads: rows of token ids with labels, and micro-batches of such rows.

A row holds one sample, or several that were packed. Its samples are *segments*: attention goes
within a segment only, and positions begin at 0 in each. This is plain NumPy; files, templates and
tokenizers are unknown here.

Shape suffixes: `N` tokens of a row, `T` tokens of a micro-batch, `S` segments, `R` rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]

NO_LOSS = -100
"""Label of a token that has no loss, as Transformers and PyTorch have it."""


@dataclass(frozen=True)
class Example:
    """One row. Arrays are views of its dataset's and must not be written to.

    Attributes:
        input_ids_N: token ids, int32.
        labels_N: the same ids where the token has a loss, else `NO_LOSS`; int32. Not shifted: the
            logits of token i are compared with the label of token i + 1 of its segment.
        segment_starts_S: where each sample begins, int32, the first at 0.
    """

    input_ids_N: Int32Array
    labels_N: Int32Array
    segment_starts_S: Int32Array

    @property
    def positions_N(self) -> Int32Array:
        """Position of each token within its segment, int32."""
        return _positions(len(self.input_ids_N), self.segment_starts_S)

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that some logits are compared with; the first of a segment never is."""
        return int((_targets(self.labels_N, self.segment_starts_S) != NO_LOSS).sum())


class Dataset:
    """Rows in order, in a few flat arrays. Immutable.

    Cost: 8 bytes per token, whatever the number of rows; a row is three views.
    """

    def __init__(
        self,
        input_ids: Int32Array,
        labels: Int32Array,
        row_starts: Int64Array,
        segment_starts: Int64Array,
    ) -> None:
        """Take flat arrays.

        Args:
            input_ids: token ids of all rows, one row behind the other.
            labels: of the same length.
            row_starts: where each row begins, and at last the number of tokens.
            segment_starts: where each segment begins; every row begins one.
        """
        self._input_ids = input_ids
        self._labels = labels
        self._row_starts = row_starts
        self._segment_starts = segment_starts
        self._row_segments = np.searchsorted(segment_starts, row_starts)

    def __len__(self) -> int:
        return len(self._row_starts) - 1

    def __getitem__(self, row: int) -> Example:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        first, last = self._row_starts[row], self._row_starts[row + 1]
        segments = slice(self._row_segments[row], self._row_segments[row + 1])
        return Example(
            self._input_ids[first:last],
            self._labels[first:last],
            (self._segment_starts[segments] - first).astype(np.int32),
        )

    def __iter__(self) -> Iterator[Example]:
        return (self[row] for row in range(len(self)))

    def reordered(self, order_R: Int64Array, rows_of_each: Int64Array) -> "Dataset":
        """A copy with rows in another order, several of them as one row.

        Args:
            order_R: numbers of rows.
            rows_of_each: how many of these, one behind the other, make up each new row.
        """
        lengths = self.row_lengths_R[order_R]
        ends = np.cumsum(lengths)
        new_starts = ends - lengths
        # Token t of the new arrays is token t + (old start - new start) of the old ones.
        shift = np.repeat(self._row_starts[order_R] - new_starts, lengths)
        tokens = np.arange(len(shift)) + shift
        segments_of_each = np.diff(self._row_segments)[order_R]
        first = np.cumsum(segments_of_each) - segments_of_each
        segments = np.arange(segments_of_each.sum()) + np.repeat(
            self._row_segments[order_R] - first, segments_of_each
        )
        moved = np.repeat(new_starts - self._row_starts[order_R], segments_of_each)
        row_ends = np.append(0, ends)[np.append(0, np.cumsum(rows_of_each))]
        return Dataset(
            self._input_ids[tokens],
            self._labels[tokens],
            row_ends,
            self._segment_starts[segments] + moved,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return len(self._input_ids)

    @property
    def num_segments(self) -> int:
        """Samples in all rows."""
        return len(self._segment_starts)

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that some logits are compared with."""
        return int((_targets(self._labels, self._segment_starts) != NO_LOSS).sum())

    @property
    def highest_id(self) -> int:
        """Of all token ids."""
        return int(self._input_ids.max(initial=-1))

    @property
    def longest_segment(self) -> int:
        """Tokens of the longest sample."""
        lengths = np.diff(self._segment_starts, append=len(self._input_ids))
        return int(lengths.max(initial=0))

    @property
    def row_lengths_R(self) -> Int64Array:
        """Tokens of each row."""
        return np.diff(self._row_starts)


@dataclass(frozen=True)
class Batch:
    """A micro-batch: rows one behind the other, without padding.

    Attributes:
        input_ids_T: token ids, int32.
        targets_T: the token that each token's logits are compared with, or `NO_LOSS`; int32. It is
            shifted: a trainer compares row t of the logits with `targets_T[t]`.
        positions_T: position of each token within its segment, int32.
        segment_starts_S: where each segment begins, int32, and at last T: S + 1 numbers. Attention
            is causal within a segment.
        num_rows: rows that it is made of.
    """

    input_ids_T: Int32Array
    targets_T: Int32Array
    positions_T: Int32Array
    segment_starts_S: Int32Array
    num_rows: int

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that have a loss."""
        return int((self.targets_T != NO_LOSS).sum())


def collate(rows: Sequence[Example]) -> Batch:
    """A micro-batch of rows, in their order.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("a micro-batch needs a row")
    input_ids_T = np.concatenate([row.input_ids_N for row in rows])
    lengths = np.array([len(row.input_ids_N) for row in rows])
    offsets = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    starts_S = np.concatenate(
        [row.segment_starts_S + offset for row, offset in zip(rows, offsets, strict=True)]
    ).astype(np.int32)
    labels_T = np.concatenate([row.labels_N for row in rows])
    return Batch(
        input_ids_T=input_ids_T,
        targets_T=_targets(labels_T, starts_S),
        positions_T=_positions(len(input_ids_T), starts_S),
        segment_starts_S=np.append(starts_S, np.int32(len(input_ids_T))),
        num_rows=len(rows),
    )


def row_order(num_rows: int, *, seed: int, epoch: int, shuffle: bool = True) -> Int64Array:
    """The order of an epoch's rows; the same for the same numbers, on any machine.

    Args:
        num_rows: of the dataset.
        seed: of the run.
        epoch: from 0; each has an order of its own.
        shuffle: False: in order.
    """
    if not shuffle:
        return np.arange(num_rows)
    return np.random.default_rng((seed, epoch)).permutation(num_rows)


def _positions(num_tokens: int, starts_S: NDArray[np.integer]) -> Int32Array:
    """Count from 0 in each segment."""
    lengths = np.diff(starts_S, append=num_tokens)
    return (np.arange(num_tokens) - np.repeat(starts_S, lengths)).astype(np.int32)


def _targets(labels_T: Int32Array, starts_S: NDArray[np.integer]) -> Int32Array:
    """Labels one to the left; the last token of a segment is compared with nothing."""
    targets_T = np.append(labels_T[1:], np.int32(NO_LOSS)).astype(np.int32)
    targets_T[starts_S[1:] - 1] = NO_LOSS
    return targets_T
