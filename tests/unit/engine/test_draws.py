import numpy as np
import pytest

from inlay.engine.draws import derive_seed, draw


def test_a_draw_is_a_function_of_its_counter():
    # Other processes and versions must draw the same numbers: these values never change.
    assert draw(0, 0, 0) == 0.7945189032113016
    assert draw(7, 0, 0) == draw(7, 0, 0)
    assert len({draw(7, 0, 0), draw(8, 0, 0), draw(7, 1, 0), draw(7, 0, 1)}) == 4


def test_seeds_of_any_size_are_taken():
    assert draw(-1, 0, 0) == draw(2**64 - 1, 0, 0) == draw(2**128 - 1, 0, 0)


def test_draws_are_uniform_and_independent():
    values = np.array([draw(3, 0, position) for position in range(20000)])
    assert 0 <= values.min() and values.max() < 1
    counts, _ = np.histogram(values, bins=50, range=(0, 1))
    assert ((counts - 400) ** 2 / 400).sum() < 85.4  # chi-square, 49 degrees, p = 0.001
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.025


@pytest.mark.parametrize("other", [(1, 1), (0, 2)])
def test_derived_seeds_differ(other):
    assert derive_seed(0, 1) != derive_seed(*other)
    assert 0 <= derive_seed(0, 1) < 2**64
