"""Medians, percentiles and bootstrap intervals of small samples. Knows nothing of benchmarks."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number, the mean of the middle two."""
    return float(np.median(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest values."""
    return float(np.percentile(values, percent))


def median_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the median: what other samples of this size would give.

    Percentile method with `RESAMPLES` draws from a fixed seed, so a record can be recomputed.
    """
    sample = np.asarray(values, dtype=float)
    draws = np.random.default_rng(seed).integers(0, len(sample), (RESAMPLES, len(sample)))
    low, high = np.percentile(np.median(sample[draws], axis=1), [2.5, 97.5])
    return float(low), float(high)
