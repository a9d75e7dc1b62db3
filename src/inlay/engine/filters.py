"""Top-k, top-p and min-p on one row of unnormalised probabilities."""

import numpy as np

from inlay.engine.probabilities import Float32, block_ends, highest_first, top_ids


def keep_likely(weights_W: Float32, *, top_k: int, top_p: float, min_p: float) -> None:
    """Set the weight of tokens that the filters drop to zero, in place.

    The filters follow each other: min-p compares with the most likely token, top-k counts,
    top-p takes the smallest set that reaches its share of what top-k left. Among equal
    weights the lower token id is kept first. At least one token stays.

    Args:
        weights_W: weights of one row, padded; the highest is 1.
        top_k: 0 keeps all.
        top_p: in (0, 1].
        min_p: in [0, 1].

    Cost: a few passes over the row; only candidates are sorted.
    """
    if min_p > 0.0:
        weights_W[weights_W < np.float32(min_p)] = 0.0
    if 0 < top_k < len(weights_W):
        ids = top_ids(weights_W, top_k)
        total = float(np.cumsum(weights_W[ids], dtype=np.float64)[-1])
    elif top_p < 1.0:
        # Tokens below this weight add up to less than what top-p drops, so none of them stays.
        total = float(block_ends(weights_W[None])[0, -1])
        ids = np.flatnonzero(weights_W >= (1.0 - top_p) * total / len(weights_W))
        ids = highest_first(weights_W, ids)
    else:
        return
    kept = weights_W[ids]
    if top_p < 1.0:
        running = np.cumsum(kept, dtype=np.float64)
        count = int(np.searchsorted(running, top_p * total, side="left")) + 1
        ids, kept = ids[:count], kept[:count]
    weights_W.fill(0.0)
    weights_W[ids] = kept
