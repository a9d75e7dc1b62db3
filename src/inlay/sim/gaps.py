"""Gaps between tokens, of which there are too many to keep: counted by how long they are.

A bin has the gaps that are alike in a float's exponent and the seven bits behind it, so that what
is read off its middle is within 0.4 %. `native/sim/step_log.h` counts them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 0x7F80
_SHIFT = 16  # of a float's bits
_MIDDLES = (np.arange(NUM_BINS, dtype=np.uint32) << _SHIFT | 1 << _SHIFT - 1).view(np.float32)


def gap_percentiles(counts: NDArray[np.int64], wanted: Sequence[float]) -> list[float] | None:
    """The gaps below which these percents of all are; None where there is no gap.

    Args:
        counts: (NUM_BINS,), as `World.gap_counts`.
    """
    sums = np.cumsum(counts)
    total = int(sums[-1])
    if not total:
        return None
    ranks = np.ceil(np.array(wanted) / 100 * total).clip(1)
    bins = np.searchsorted(sums, ranks)
    return [float(_MIDDLES[one]) if one else 0.0 for one in bins.tolist()]
