"""Percentiles found in rounds are those of all numbers at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.sim.percentiles import ROUNDS, Percentiles

WANTED = (0, 12.5, 50, 90, 99, 100)
NUMBERS = st.one_of(
    st.floats(0, 1e12), st.sampled_from([0.0, 0.25, 0.25, 1.0, 5e-324]), st.floats(1.0, 1.0001)
)


def found(numbers, pieces):
    percentiles = Percentiles(WANTED)
    for _ in range(ROUNDS):
        for piece in np.array_split(np.array(numbers), pieces):
            percentiles.add(piece)
        percentiles.settle()
    return percentiles


@given(st.lists(NUMBERS, min_size=1, max_size=60), st.integers(1, 5))
def test_they_are_numpys(numbers, pieces):
    percentiles = found(numbers, pieces)
    assert percentiles.found.tolist() == np.percentile(numbers, WANTED).tolist()
    assert percentiles.mean == pytest.approx(np.mean(numbers))


def test_of_many_that_are_nearly_equal():
    drawn = np.random.default_rng(1).lognormal(0, 1e-9, 200_000)
    assert found(drawn, 7).found.tolist() == np.percentile(drawn, WANTED).tolist()


def test_of_nothing():
    assert found([], 1).found is None
