"""The choice of experts: every ISA against the reference, ties, groups and what has no scores."""

from typing import Any

import numpy as np
import pytest

from inlay import kernels
from inlay.kernels import reference
from tests.native.cases import floats


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("num_experts", [1, 5, 16, 60, 128])
def test_router_equals_reference(
    isa: str, rng: np.random.Generator, num_experts: int, normalize: bool
) -> None:
    for tokens in (0, 1, 33):
        for top_k in {1, min(6, num_experts), num_experts}:
            logits = floats(rng, tokens, num_experts + 3)[:, :num_experts] * 4
            ids, weights = (
                np.empty((tokens, top_k), np.int32),
                np.empty((tokens, top_k), np.float32),
            )
            expected_ids, expected = ids.copy(), weights.copy()
            kernels.router_topk(logits, top_k, normalize, ids, weights)
            reference.router_topk(logits, top_k, normalize, expected_ids, expected)
            assert np.array_equal(ids, expected_ids)
            assert np.allclose(weights, expected, rtol=2e-6, atol=1e-9)


def test_router_gives_ties_to_the_lower_id(isa: str) -> None:
    ids, weights = np.empty((1, 3), np.int32), np.empty((1, 3), np.float32)
    kernels.router_topk(np.array([[1, 5, 5, 1, 5]], np.float32), 3, True, ids, weights)
    assert ids.tolist() == [[1, 2, 4]]


def test_router_takes_infinite_logits(isa: str) -> None:
    ids, weights = np.empty((1, 2), np.int32), np.empty((1, 2), np.float32)
    kernels.router_topk(np.array([[-np.inf, 0, -np.inf]], np.float32), 2, False, ids, weights)
    assert ids.tolist() == [[1, 0]]
    assert weights.tolist() == [[1, 0]]


RULES: list[dict[str, Any]] = [
    {"score": "sigmoid"},
    {"score": "sigmoid", "correction": True},
    {"groups": 4, "groups_per_token": 2},
    {"groups": 4, "groups_per_token": 2, "group_score": "best_two", "scale": 2.5},
    {"score": "sigmoid", "correction": True, "groups": 8, "groups_per_token": 3,
     "group_score": "best_two", "scale": 0.5},
    {"score": "sigmoid", "groups": 1, "groups_per_token": 1, "group_score": "best_two"},
]  # fmt: skip


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("num_experts", [16, 40, 256])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_rules_equal_reference(
    isa: str, rng: np.random.Generator, rules: dict[str, Any], num_experts: int, normalize: bool
) -> None:
    correction = floats(rng, num_experts) / 4 if rules.get("correction") else None
    logits = floats(rng, 70, num_experts + 3)[:, :num_experts] * 2
    for top_k in (1, 6):
        ids, weights = np.empty((70, top_k), np.int32), np.empty((70, top_k), np.float32)
        expected_ids, expected = ids.copy(), weights.copy()
        given = {key: value for key, value in rules.items() if key != "correction"}
        kernels.router_topk(
            logits, top_k, normalize, ids, weights, correction_E=correction, **given
        )
        reference.router_topk(
            logits, top_k, normalize, expected_ids, expected,
            rules.get("score") == "sigmoid", correction, rules.get("groups", 1),
            rules.get("groups_per_token", 1), rules.get("group_score") == "best_two",
            rules.get("scale", 1.0),
        )  # fmt: skip
        assert np.array_equal(ids, expected_ids)
        assert np.allclose(weights, expected, rtol=2e-6, atol=1e-9)


def test_a_group_counts_its_best_or_its_best_two(isa: str) -> None:
    logits = np.array([[9, 1, 1, 6, 6, 6, 0, 8]], np.float32)
    ids, weights = np.empty((1, 2), np.int32), np.empty((1, 2), np.float32)
    groups = {"groups": 4, "groups_per_token": 1}
    kernels.router_topk(logits, 2, False, ids, weights, score="sigmoid", **groups)
    assert ids.tolist() == [[0, 1]]
    kernels.router_topk(
        logits, 2, False, ids, weights, score="sigmoid", group_score="best_two", **groups
    )
    assert ids.tolist() == [[4, 5]]


def test_a_correction_chooses_and_does_not_weigh(isa: str) -> None:
    logits = np.array([[0, 1, 2, 3]], np.float32)
    correction = np.array([5, 0, 0, 0], np.float32)
    ids, weights = np.empty((1, 2), np.int32), np.empty((1, 2), np.float32)
    kernels.router_topk(
        logits, 2, False, ids, weights, score="sigmoid", correction_E=correction, scale=2
    )
    assert ids.tolist() == [[0, 3]]
    assert np.allclose(weights, [[1.0, 2 / (1 + np.exp(-3))]], rtol=1e-6)


def test_sigmoids_of_nothing_are_no_division_by_zero(isa: str) -> None:
    logits = np.full((1, 4), -1e30, np.float32)
    ids, weights = np.empty((1, 2), np.int32), np.empty((1, 2), np.float32)
    kernels.router_topk(logits, 2, True, ids, weights, score="sigmoid")
    assert ids.tolist() == [[0, 1]] and (weights < 1e-18).all()
