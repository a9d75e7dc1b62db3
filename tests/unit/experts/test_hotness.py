"""Moves by hand, what holds for all of them, and how near they come to the best experts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from benchmarks.experts.hotness import simulate
from benchmarks.experts.zipf import zipf
from inlay.core.errors import ArgumentError
from inlay.experts import Hotness, Move
from inlay.experts.hotness import HALF_LIFE

WORKLOAD = {
    "layers": 4,
    "experts": 128,
    "per_token": 8,
    "resident": 12,
    "moves_per_step": 1,
    "warm_steps": 400,
    "shift_steps": 200,
    "window_steps": 50,
}
MANY = 10**9


def heated(*rows: list[int]) -> Hotness:
    hotness = Hotness(len(rows), len(rows[0]))
    hotness.observe(np.array(rows))
    return hotness


def first(resident: int, layers: int, experts: int) -> NDArray[np.bool_]:
    resident_LE = np.zeros((layers, experts), dtype=bool)
    resident_LE[:, :resident] = True
    return resident_LE


def moved(resident_LE: NDArray[np.bool_], moves: list[Move]) -> NDArray[np.bool_]:
    after_LE = resident_LE.copy()
    for move in moves:
        after_LE[move.layer, move.promoted] = True
        after_LE[move.layer, move.demoted] = False
    return after_LE


def test_hottest_host_expert_takes_the_place_of_the_coldest_resident_one() -> None:
    hotness = heated([5, 2, 40, 30], [50, 2, 1, 50])
    assert hotness.choose(first(2, 2, 4), MANY, 1) == [
        Move(layer=1, promoted=3, demoted=1),
        Move(layer=0, promoted=2, demoted=1),
    ]


def test_the_budget_goes_to_those_that_bring_most() -> None:
    hotness = heated([0, 30], [0, 50], [0, 40])
    resident_LE = first(1, 3, 2)
    chosen = [[m.layer for m in hotness.choose(resident_LE, b, 10)] for b in (9, 10, 29, 30)]
    assert chosen == [[], [1], [1, 2], [1, 2, 0]]


def test_who_leads_by_chance_stays_where_it_is() -> None:
    # Of 20 and 28 the difference varies by sqrt(24): 8 are not 2 of it, 12 of 32 and 20 are.
    assert heated([20, 28]).choose(first(1, 1, 2), MANY, 1) == []
    assert heated([20, 32]).choose(first(1, 1, 2), MANY, 1) == [
        Move(layer=0, promoted=1, demoted=0)
    ]
    assert heated([0, 0]).choose(first(1, 1, 2), MANY, 1) == []


def test_layers_without_host_or_resident_experts_have_no_moves() -> None:
    hotness = heated([0, 40], [0, 40])
    for resident in (0, 2):
        assert hotness.choose(first(resident, 2, 2), MANY, 1) == []


def test_ageing_goes_by_activations() -> None:
    hotness = Hotness(2, 4)
    hotness.observe(np.array([[64, 0, 0, 0], [64, 0, 0, 0]]))
    # As many activations as halve: in one step in layer 0, none in layer 1.
    hotness.observe(np.array([[0, int(4 * HALF_LIFE), 0, 0], [0, 0, 0, 0]]))
    np.testing.assert_allclose(hotness.heat_LE[:, 0], [32, 64])


@pytest.mark.parametrize("tokens", [1, 8])
def test_near_the_best_experts_when_warm_and_soon_after_a_shift(tokens: int) -> None:
    popularity = zipf(128, 8, 1.1)
    best = popularity.best_share(12)
    assert 0.5 < best < 0.6
    outcome = simulate(WORKLOAD, popularity, tokens, seed=3)
    assert outcome.shares["warm"] >= 0.93 * best
    assert outcome.shares["after_shift"] >= 0.93 * best
    assert 5 < outcome.steps < 150
    assert outcome.moves < 0.1  # nothing changes, so hardly anything is copied


def test_uniform_routing_copies_hardly_anything() -> None:
    outcome = simulate(WORKLOAD, zipf(128, 8, 0.0), 1, seed=3)
    assert outcome.moves < 0.2


@given(data=st.data(), layers=st.integers(1, 4), experts=st.integers(1, 8))
def test_moves_are_possible_and_come_to_an_end(
    data: st.DataObject, layers: int, experts: int
) -> None:
    counts = arrays.arrays(np.int64, (layers, experts), elements=st.integers(0, 50))
    resident_LE = data.draw(arrays.arrays(np.bool_, (layers, experts)))
    hotness = Hotness(layers, experts)
    for _ in range(3):
        hotness.observe(data.draw(counts))
    budget, size = data.draw(st.integers(0, 100)), data.draw(st.integers(1, 40))
    seen = set()
    while moves := hotness.choose(resident_LE, budget, size):
        assert len(moves) <= budget // size
        assert len({move.layer for move in moves}) == len(moves)
        for move in moves:
            assert resident_LE[move.layer, move.demoted]
            assert not resident_LE[move.layer, move.promoted]
            assert (
                hotness.heat_LE[move.layer, move.promoted]
                > hotness.heat_LE[move.layer, move.demoted]
            )
        after_LE = moved(resident_LE, moves)
        np.testing.assert_array_equal(after_LE.sum(axis=1), resident_LE.sum(axis=1))
        resident_LE = after_LE
        assert resident_LE.tobytes() not in seen
        seen.add(resident_LE.tobytes())


def test_arguments_that_do_not_fit() -> None:
    hotness = Hotness(2, 4)
    with pytest.raises(ArgumentError, match=r"counts_LE is \(2, 3\), not \(2, 4\)"):
        hotness.observe(np.zeros((2, 3), dtype=np.int64))
    with pytest.raises(ArgumentError, match="resident_LE"):
        hotness.choose(np.zeros((1, 4), dtype=np.bool_), 1, 1)
    for budget, size in ((-1, 1), (1, 0)):
        with pytest.raises(ArgumentError, match="cannot be moved"):
            hotness.choose(first(1, 2, 4), budget, size)
