"""Row-wise arithmetic on logits whose result for a row never depends on the other rows.

Legend: R rows, V vocabulary, W = V rounded up to whole blocks of `BLOCK`.

Sums over the vocabulary run in two levels: float32 inside blocks of 64, then float64 over the
block sums, one after the other. The order is fixed by V alone, and drawing a token needs to
look at the block sums and one block only.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

BLOCK = 64
# Up to here the number of calls costs more than the work of each.
FEW = 256

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def padded_width(vocab_size: int) -> int:
    """V rounded up to whole blocks."""
    return -(-vocab_size // BLOCK) * BLOCK


def weights(
    logits_RV: Float32, highest_R: Float32, scale_R: Float32, out_RW: Float32 | None = None
) -> Float32:
    """`exp((logits - highest) * scale)`, zero in the padding: unnormalised probabilities.

    Args:
        highest_R: the highest logit of each row, finite.
        scale_R: one over the temperature.
        out_RW: memory for the result.
    """
    num_rows, vocab_size = logits_RV.shape
    if out_RW is None:
        out_RW = np.empty((num_rows, padded_width(vocab_size)), np.float32)
    inner = out_RW[:, :vocab_size]
    np.subtract(logits_RV, highest_R[:, None], out=inner)
    np.multiply(inner, scale_R[:, None], out=inner)
    np.exp(inner, out=inner)
    out_RW[:, vocab_size:] = 0.0
    return out_RW


def block_ends(weights_RW: Float32) -> Float64:
    """Running sums at the end of each block, [R, W / BLOCK]; the last column is the total."""
    num_rows, width = weights_RW.shape
    # Five times as fast as `sum(axis=2)`, whose inner loop is too short for NumPy to pay off.
    sums = np.einsum("rgb->rg", weights_RW.reshape(num_rows, width // BLOCK, BLOCK))
    return np.cumsum(sums, axis=1, dtype=np.float64)


def draw_tokens(weights_RW: Float32, uniform_R: Float64) -> Int64:
    """Draw one token per row by the inverse of the cumulative distribution.

    A token of weight zero is never drawn. Each row has a positive total.
    """
    ends_RG = block_ends(weights_RW)
    rows = np.arange(len(ends_RG))
    target_R = uniform_R * ends_RG[:, -1]
    block_R = (ends_RG <= target_R[:, None]).sum(axis=1)
    np.minimum(block_R, ends_RG.shape[1] - 1, out=block_R)
    before_R = np.where(block_R > 0, ends_RG[rows, block_R - 1], 0.0)
    inside_RB = weights_RW.reshape(len(rows), -1, BLOCK)[rows, block_R]
    running_RB = np.cumsum(inside_RB, axis=1, dtype=np.float64)
    offset_R = (running_RB <= (target_R - before_R)[:, None]).sum(axis=1)
    # Rounding may put the target past the block's own sum: take its last possible token.
    last_R = BLOCK - 1 - (inside_RB[:, ::-1] > 0).argmax(axis=1)
    tokens_R: Int64 = block_R * BLOCK + np.minimum(offset_R, last_R)
    return tokens_R


def draw_place(weights_C: Float32, uniform: float) -> int:
    """Draw one of the weights, all above zero, by the inverse of their running sum."""
    if len(weights_C) <= FEW:
        running_C = weights_C.cumsum(dtype=np.float64)
        place = int(running_C.searchsorted(uniform * running_C[-1], "right"))
        return min(place, len(weights_C) - 1)
    ends_G = running_ends(weights_C)
    return place_of_sum(weights_C, ends_G, uniform * float(ends_G[-1]), passing=True)


def running_ends(weights_C: Float32) -> Float64:
    """Running sums of one row in float64, at the end of each block; the last may be shorter.

    Two levels, because a running sum of 100,000 weights is one chain of additions.
    """
    starts_G = np.arange(0, len(weights_C), BLOCK)
    ends_G: Float64 = np.cumsum(np.add.reduceat(weights_C, starts_G, dtype=np.float64))
    return ends_G


def place_of_sum(weights_C: Float32, ends_G: Float64, target: float, *, passing: bool) -> int:
    """First place where the running sum reaches `target`, or passes it; else the last place."""
    side: Literal["left", "right"] = "right" if passing else "left"
    block = min(int(np.searchsorted(ends_G, target, side)), len(ends_G) - 1)
    before = float(ends_G[block - 1]) if block else 0.0
    inside_B = weights_C[block * BLOCK : (block + 1) * BLOCK]
    running_B = np.cumsum(inside_B, dtype=np.float64)
    offset = int(np.searchsorted(running_B, target - before, side))
    return block * BLOCK + min(offset, len(inside_B) - 1)


def log_sum_exp(logits_RV: Float32) -> Float64:
    """Natural log of the sum of exponentials of each row."""
    highest_R = logits_RV.max(axis=1)
    ones = np.ones(len(highest_R), np.float32)
    totals_R = block_ends(weights(logits_RV, highest_R, ones))[:, -1]
    result_R: Float64 = highest_R + np.log(totals_R)
    return result_R


def top_ids(values_V: Float32, count: int) -> Int64:
    """Ids of the `count` highest values, highest first; of equal ones the lower id first.

    Cost: one pass over V and a sort of few candidates. V is taken as BLOCK rows of columns: the
        `count`-th highest of the columns' maxima is a lower bound of the `count`-th highest
        value, so that only columns of at least that maximum hold candidates.
    """
    size = len(values_V)
    count = min(count, size)
    num_columns = size // BLOCK
    if count < num_columns:
        table_BC = values_V[: num_columns * BLOCK].reshape(BLOCK, num_columns)
        maxima_C = table_BC.max(axis=0)
        bound = np.partition(maxima_C, num_columns - count)[num_columns - count]
        columns = np.flatnonzero(maxima_C >= bound)
        rows, places = np.nonzero(table_BC[:, columns] >= bound)
        rest = np.arange(num_columns * BLOCK, size)
        ids = np.concatenate((rows * num_columns + columns[places], rest))
    else:
        ids = np.arange(size)
    order = np.argsort(-values_V[ids], kind="stable")
    return ids[order[:count]]
