"""Routed experts: every ISA against the reference, and the same bits in every company."""

import numpy as np
import pytest
import torch

from inlay import kernels
from inlay.kernels import reference
from tests.native.cases import floats, pairs, routing

# experts, hidden, width, top_k
SHAPES = [(16, 256, 128, 6), (3, 33, 17, 2), (5, 64, 100, 5), (1, 7, 1, 1), (8, 130, 32, 3)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference(
    isa: str, rng: np.random.Generator, shape: tuple[int, int, int, int], dtype: str
) -> None:
    num_experts, hidden, width, top_k = shape
    packed, plain = pairs(rng, num_experts, hidden, width, dtype)
    for tokens in (0, 1, 5, 17, 130):
        x = floats(rng, tokens, hidden)
        ids, weights = routing(rng, tokens, num_experts, top_k)
        for accumulate in (False, True):
            out = floats(rng, tokens, hidden)
            expected = out.copy()
            reference.moe(x, plain, ids, weights, expected, accumulate)
            kernels.moe(x, packed, ids, weights, out, accumulate=accumulate)
            assert np.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_alone_has_the_same_bits(
    isa: str, rng: np.random.Generator, dtype: str, threads: None
) -> None:
    packed, _ = pairs(rng, 6, 70, 50, dtype)
    x = floats(rng, 1030, 70)  # more than one internal chunk
    ids, weights = routing(rng, 1030, 6, 3)
    together = np.empty_like(x)
    kernels.moe(x, packed, ids, weights, together)
    for num_threads in (1, 3):
        kernels.set_num_threads(num_threads)
        for step, end in ((1, 40), (7, 210), (400, 1030)):
            pieces = np.empty_like(x)
            for i in range(0, end, step):
                j = min(i + step, end)
                kernels.moe(x[i:j], packed, ids[i:j], weights[i:j], pieces[i:j])
            assert np.array_equal(pieces[:end], together[:end])


def test_order_of_the_choices_does_not_matter(isa: str, rng: np.random.Generator) -> None:
    packed, _ = pairs(rng, 6, 40, 32, "float32")
    x = floats(rng, 9, 40)
    ids, weights = routing(rng, 9, 6, 4)
    one, other = np.empty_like(x), np.empty_like(x)
    kernels.moe(x, packed, ids, weights, one)
    order = [2, 0, 3, 1]
    kernels.moe(
        x,
        packed,
        np.ascontiguousarray(ids[:, order]),
        np.ascontiguousarray(weights[:, order]),
        other,
    )
    assert np.array_equal(one, other)


def test_negative_ids_are_skipped(isa: str, rng: np.random.Generator) -> None:
    packed, plain = pairs(rng, 4, 32, 32, "float32")
    x = floats(rng, 6, 32)
    ids, weights = routing(rng, 6, 4, 2)
    ids[::2, 0] = -1
    ids[4] = -7
    weights[4] = np.nan  # not looked at
    out, expected = np.full_like(x, np.nan), np.empty_like(x)
    kernels.moe(x, packed, ids, weights, out)
    reference.moe(x, plain, ids, weights, expected)
    assert np.allclose(out, expected, atol=1e-5)
    assert not out[4].any()


def test_pack_experts_equals_one_by_one(rng: np.random.Generator) -> None:
    gate, up, down = floats(rng, 3, 20, 36), floats(rng, 3, 20, 36), floats(rng, 3, 36, 20)
    x = floats(rng, 4, 36)
    ids, weights = routing(rng, 4, 3, 2)
    results = []
    single = kernels.ExpertWeights(3, 36, 20, "bfloat16")
    for e in range(3):
        single.set(e, gate[e], up[e], down[e])
    tensors = (torch.from_numpy(a).bfloat16() for a in (gate, up, down))
    for experts in (
        single,
        kernels.pack_experts(gate, up, down, "bfloat16"),
        kernels.pack_experts(*tensors),
    ):
        assert (experts.num_experts, experts.hidden, experts.intermediate) == (3, 36, 20)
        out = np.empty_like(x)
        kernels.moe(x, experts, ids, weights, out)
        results.append(out)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


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
