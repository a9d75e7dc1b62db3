"""Sliding windows: what is of late, and what is too old."""

import random

import numpy as np
import pytest

from inlay.cluster.windows import NUM_SLOTS, SLOT_S, Spread, Tally
from inlay.core.errors import ArgumentError

START_S = 12_345.0


def test_sums_are_of_the_window_and_totals_of_all_time() -> None:
    tally = Tally(START_S)
    tally.add("requests", START_S)
    tally.add("requests", START_S + 61.0, 3)
    assert tally.sums(START_S + 61.0, 60.0) == {"requests": 3}
    assert tally.sums(START_S + 61.0, 64.0) == {"requests": 4}
    assert tally.totals == {"requests": 4}
    assert tally.sums(START_S + 1e6, 60.0) == {}


def test_a_rate_of_a_young_tally_is_over_its_age() -> None:
    tally = Tally(START_S)
    assert tally.covered_s(START_S + 5.0, 60.0) == 5.0
    covered_s = tally.covered_s(START_S + 500.0, 60.0)
    assert 60.0 - SLOT_S <= covered_s <= 60.0


def test_a_steady_rate_is_found_at_any_moment() -> None:
    tally = Tally(START_S)
    for i in range(4000):
        tally.add("requests", START_S + i * 0.1)
        now_s = START_S + i * 0.1
        if i > 100:
            rate = tally.sums(now_s, 60.0)["requests"] / tally.covered_s(now_s, 60.0)
            assert rate == pytest.approx(10.0, rel=0.03)


def test_slots_are_given_again() -> None:
    tally = Tally(START_S)
    for i in range(3 * NUM_SLOTS):
        tally.add("n", START_S + i * SLOT_S)
    series = tally.series("n", START_S + (3 * NUM_SLOTS - 1) * SLOT_S)
    assert series == [1.0] * NUM_SLOTS
    # A pause longer than the ring leaves nothing behind.
    assert tally.series("n", START_S + 10 * NUM_SLOTS * SLOT_S) == [0.0] * NUM_SLOTS


@pytest.mark.parametrize("scale_s", [2e-4, 0.03, 5.0])
def test_percentiles_are_right_to_the_width_of_a_bin(scale_s: float) -> None:
    rng = random.Random(5)
    values = [rng.lognormvariate(0.0, 1.0) * scale_s for _ in range(5000)]
    spread = Spread()
    for i, value in enumerate(values):
        spread.add(value, START_S + i * 0.01)
    found = spread.percentiles((0.5, 0.9, 0.99), START_S + 50.0, 60.0)
    assert spread.count(START_S + 50.0, 60.0) == 5000
    wanted = np.quantile(values, (0.5, 0.9, 0.99), method="inverted_cdf")
    for value, right in zip(found, wanted, strict=True):
        assert value == pytest.approx(right, rel=0.026)


def test_percentiles_of_nothing_and_of_what_is_too_old() -> None:
    spread = Spread()
    assert spread.percentiles((0.5,), START_S, 60.0) == [None]
    spread.add(1.0, START_S)
    assert spread.percentiles((0.5,), START_S + 100.0, 60.0) == [None]
    assert set(spread.series(0.5, START_S + 1000.0)) == {None}


def test_values_beyond_the_bins_count_at_the_ends() -> None:
    spread = Spread()
    for value in (0.0, 1e-9, 1e9):
        spread.add(value, START_S)
    low, high = spread.percentiles((0.5, 0.99), START_S, 60.0)
    assert low is not None and low < 2e-5
    assert high is not None and high > 900


def test_a_point_of_a_series_looks_back_ten_seconds() -> None:
    spread = Spread()
    spread.add(0.1, START_S)
    spread.add(0.4, START_S + 4 * SLOT_S)
    points = spread.series(0.99, START_S + 8 * SLOT_S)[-9:]
    assert [point is not None for point in points] == [True] * 9
    assert points[3] == pytest.approx(0.1, rel=0.03)
    assert all(point == pytest.approx(0.4, rel=0.03) for point in points[4:])
    assert spread.series(0.99, START_S + 9 * SLOT_S)[-1] is None


@pytest.mark.parametrize("window_s", [0.0, 1e4])
def test_windows_that_are_not_kept(window_s: float) -> None:
    with pytest.raises(ArgumentError, match="window_s"):
        Tally(0.0).sums(1.0, window_s)
