import numpy as np
import pytest

from benchmarks.stats import median, median_interval, percentile


def test_median_and_percentiles() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert percentile([0.0, 10.0], 10) == pytest.approx(1.0)


def test_interval_is_the_same_on_every_call() -> None:
    values = [1.0, 1.1, 0.9, 1.3, 1.05]
    assert median_interval(values) == median_interval(values)


def test_interval_of_equal_values_is_a_point() -> None:
    assert median_interval([2.0] * 8) == (2.0, 2.0)


def test_interval_covers_the_true_median_about_95_times_in_100() -> None:
    draws = np.random.default_rng(1).normal(1.0, 0.1, (200, 30))
    inside = 0
    for sample in draws:
        low, high = median_interval(sample.tolist())
        inside += low <= 1.0 <= high
    assert 0.90 <= inside / len(draws) <= 0.99
