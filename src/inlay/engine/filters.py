"""Top-k, top-p and min-p on one row of logits."""

import math

import numpy as np

from inlay.engine.probabilities import (
    FEW,
    Float32,
    Int64,
    block_ends,
    place_of_sum,
    running_ends,
    top_ids,
    weights,
)


def likely_tokens(
    logits_V: Float32,
    highest: np.float32,
    scale: float,
    *,
    top_k: int,
    top_p: float,
    min_p: float,
    scratch_1W: Float32 | None = None,
) -> tuple[Int64, Float32]:
    """Tokens that the filters leave, by ascending id, and their weights `exp((l - highest) scale)`.

    The filters follow each other: min-p compares with the most likely token, top-k counts,
    top-p takes the smallest set that reaches its share of what the others left. Among equal
    weights the lower token id is kept first. At least one token stays, and none of weight zero.

    Args:
        highest: the highest logit of the row, finite.
        scale: one over the temperature.
        top_k: 0 keeps all.
        top_p: in (0, 1].
        min_p: in [0, 1].
        scratch_1W: memory for one row of weights.

    Cost: one pass over the row with top-k or min-p, which leave few candidates before any
        exponential is taken; top-p alone needs the weights of all tokens.
    """
    size, one = len(logits_V), np.float32(scale)
    total: float | None = None
    if top_k or min_p > 0.0:
        if 0 < top_k < size:
            ids = np.sort(top_ids(logits_V, top_k))
        else:
            # A little below the exact border, which the weights themselves decide.
            lowest = math.log(min_p) - 1e-3 if min_p > 0.0 else -math.inf
            ids = np.flatnonzero(logits_V >= float(highest) + lowest / scale)
        kept = np.exp((logits_V[ids] - highest) * one)
        left = (kept >= np.float32(min_p)) & (kept > 0.0)
        ids, kept = ids[left], kept[left]
    else:
        all_1W = weights(logits_V[None], np.array([highest]), np.array([one]), scratch_1W)
        total = float(block_ends(all_1W)[0, -1])
        # Tokens below this weight add up to less than what top-p drops, so none of them stays.
        left = all_1W[0] > (1.0 - top_p) * total / size
        if top_p < 1.0 and 2 * np.count_nonzero(left) > size:  # few to leave out
            ids = _reaching(all_1W[0], top_p * total)
            return ids, all_1W[0, ids]
        ids = np.flatnonzero(left)
        kept = all_1W[0, ids]
    if top_p < 1.0:
        share = top_p * (float(kept.sum(dtype=np.float64)) if total is None else total)
        chosen = _reaching(kept, share)
        ids, kept = ids[chosen], kept[chosen]
    return ids, kept


def _reaching(weights_C: Float32, share: float) -> Int64:
    """Ascending places of the highest weights, as many as it takes to add up to `share`.

    Only the values are sorted, which NumPy does five times as fast as pairs of value and place.
    """
    if len(weights_C) <= FEW:
        order = (-weights_C).argsort(kind="stable")
        running_C = weights_C[order].cumsum(dtype=np.float64)
        few: Int64 = order[: running_C.searchsorted(share) + 1]
        few.sort()
        return few
    descending_C = np.negative(weights_C)
    descending_C.sort()
    np.negative(descending_C, out=descending_C)
    count = place_of_sum(descending_C, running_ends(descending_C), share, passing=False) + 1
    border = descending_C[count - 1]
    chosen = weights_C > border
    if border > 0.0:
        equal = np.flatnonzero(weights_C == border)
        chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)
