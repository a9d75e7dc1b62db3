"""Routed experts: every ISA against the reference, and the same bits in every company."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from inlay import kernels
from inlay.core.errors import ArgumentError
from inlay.kernels import reference
from tests.native.cases import floats, pairs, routing

# experts, hidden, width, top_k
SHAPES = [(16, 200, 96, 6), (3, 33, 17, 2), (5, 64, 100, 5), (1, 7, 1, 1), (8, 130, 32, 3)]

GPT_OSS = kernels.Activation(alpha=1.702, limit=7, up_offset=1)


def assert_close(out: np.ndarray, expected: np.ndarray, format: str) -> None:
    """The same up to fp32 rounding.

    Where that moves an activated value across a rounding point of the format, its last place
    changes: a part in 200 of one of many terms.
    """
    if expected.size:
        tolerance = 3e-6 if format == "float32" else 1e-3
        assert np.linalg.norm(out - expected) <= tolerance * np.linalg.norm(expected)
        assert np.median(np.abs(out - expected)) <= 3e-6 * np.abs(expected).max()


@dataclass(frozen=True)
class Run:
    """A call of `moe` and what it should give; computed once for all variants."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]
    before: np.ndarray
    expected: np.ndarray

    def check(self, format: str) -> None:
        out = self.before.copy()
        kernels.moe(*self.arguments, out, **self.options)
        assert_close(out, self.expected, format)


@cache
def plain_runs(shape: tuple[int, int, int, int], format: str) -> list[Run]:
    num_experts, hidden, width, top_k = shape
    rng = np.random.default_rng(7)
    packed, plain = pairs(rng, num_experts, hidden, width, format)
    runs = []
    for tokens in (0, 1, 5, 17, 130):
        x = floats(rng, tokens, hidden)
        ids, weights = routing(rng, tokens, num_experts, top_k)
        for accumulate in (False, True):
            before = floats(rng, tokens, hidden)
            expected = before.copy()
            reference.moe(x, plain, ids, weights, expected, accumulate)
            arguments = (x, packed, ids, weights)
            runs.append(Run(arguments, {"accumulate": accumulate}, before, expected))
    return runs


@pytest.mark.parametrize("format", kernels.FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference(isa: str, shape: tuple[int, int, int, int], format: str) -> None:
    for run in plain_runs(shape, format):
        run.check(format)


@cache
def full_runs(format: str, shared_format: str | None) -> list[Run]:
    rng = np.random.default_rng(7)
    packed, plain = pairs(rng, 6, 70, 50, format, bias=True)
    shared, plain_shared = pairs(rng, 2, 70, 90, shared_format or "float32", bias=True)
    with_shared = shared_format is not None
    mask = np.array([1, 0, 1, 1, 0, 1], np.bool_)
    options = {"accumulate": True, "expert_mask_E": mask, "activation": GPT_OSS}
    runs = []
    for tokens in (1, 17, 130):
        x = 20 * floats(rng, tokens, 70)  # beyond the limit of 7
        ids, weights = routing(rng, tokens, 6, 3)
        ids[::3, 1] = -1
        weights[(ids == 1) | (ids < 0)] = np.nan  # masked out: not looked at
        before = floats(rng, tokens, 70)
        expected = before.copy()
        reference.moe(
            x, plain, ids, weights, expected, True, mask, 1.702, 7, 1,
            plain_shared if with_shared else None,
        )  # fmt: skip
        chosen = {**options, "shared": shared if with_shared else None}
        runs.append(Run((x, packed, ids, weights), chosen, before, expected))
    return runs


@pytest.mark.parametrize("shared_format", ["float32", "int8:g32", None])
@pytest.mark.parametrize("format", kernels.FORMATS)
def test_everything_at_once_equals_reference(
    isa: str, format: str, shared_format: str | None
) -> None:
    """Biases, a clamped activation, a mask, negative ids and shared experts of another format."""
    for run in full_runs(format, shared_format):
        run.check(format)


def test_activation_and_biases_are_those_of_torch(isa: str, rng: np.random.Generator) -> None:
    """The clamped activation, written down here once more."""
    experts = kernels.ExpertWeights(1, 40, 30, bias=True)
    gate, up, down = floats(rng, 30, 40), floats(rng, 30, 40), floats(rng, 40, 30)
    gate_bias, up_bias, down_bias = floats(rng, 30), floats(rng, 30), floats(rng, 40)
    experts.set(0, gate, up, down, gate_bias_F=gate_bias, up_bias_F=up_bias, down_bias_M=down_bias)
    x = floats(rng, 9, 40)
    t = torch.from_numpy
    g = torch.nn.functional.linear(t(x), t(gate), t(gate_bias)).clamp(max=7)
    u = torch.nn.functional.linear(t(x), t(up), t(up_bias)).clamp(-7, 7)
    h = g * torch.sigmoid(1.702 * g) * (u + 1)
    expected = 0.5 * torch.nn.functional.linear(h, t(down), t(down_bias))
    out = np.empty_like(x)
    ids, weights = np.zeros((9, 1), np.int32), np.full((9, 1), 0.5, np.float32)
    kernels.moe(x, experts, ids, weights, out, activation=GPT_OSS)
    assert torch.allclose(t(out), expected, rtol=1e-4, atol=1e-3)
    assert float(g.max()) == 7 and float(u.max()) == 7


def test_biases_are_kept_and_can_be_left_alone(rng: np.random.Generator) -> None:
    experts = kernels.ExpertWeights(2, 4, 3, "bfloat16", bias=True)
    matrices = floats(rng, 3, 4), floats(rng, 3, 4), floats(rng, 4, 3)
    experts.set(1, *matrices, up_bias_F=np.arange(3, dtype=np.float32))
    experts.set(1, *matrices, down_bias_M=np.full(4, 9, np.float32))
    biases = experts.biases()
    assert biases is not None and biases.tolist() == [[0] * 10, [0] * 3 + [0, 1, 2] + [9] * 4]


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_a_token_alone_has_the_same_bits(
    isa: str, rng: np.random.Generator, format: str, threads: None
) -> None:
    packed, _ = pairs(rng, 6, 70, 50, format, bias=True)
    shared, _ = pairs(rng, 1, 70, 33, format)
    x = floats(rng, 1030, 70)  # more than one internal chunk
    ids, weights = routing(rng, 1030, 6, 3)
    together = np.empty_like(x)
    kernels.moe(x, packed, ids, weights, together, shared=shared)
    for num_threads in (1, 3):
        kernels.set_num_threads(num_threads)
        for step, end in ((1, 40), (7, 210), (400, 1030)):
            pieces = np.empty_like(x)
            for i in range(0, end, step):
                part = slice(i, min(i + step, end))
                kernels.moe(x[part], packed, ids[part], weights[part], pieces[part], shared=shared)
            assert np.array_equal(pieces[:end], together[:end])


@pytest.mark.parametrize("format", ["float32", "int4:g32"])
def test_masks_split_the_work(isa: str, rng: np.random.Generator, format: str) -> None:
    """What runs here and what runs elsewhere add up to the whole."""
    packed, _ = pairs(rng, 6, 64, 32, format)
    x = floats(rng, 20, 64)
    ids, weights = routing(rng, 20, 6, 4)
    whole, parts = np.empty_like(x), np.empty_like(x)
    kernels.moe(x, packed, ids, weights, whole)
    mask = np.array([1, 1, 0, 0, 1, 0], np.uint8)
    kernels.moe(x, packed, ids, weights, parts, expert_mask_E=mask)
    kernels.moe(x, packed, ids, weights, parts, expert_mask_E=1 - mask, accumulate=True)
    assert np.allclose(parts, whole, rtol=1e-5, atol=1e-5)
    kernels.moe(x, packed, ids, weights, parts, expert_mask_E=np.zeros(6, np.uint8))
    assert not parts.any()


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_an_expert_is_taken_as_it_is(rng: np.random.Generator, format: str, threads: None) -> None:
    """With its biases, between experts that are cut in the same way and no others."""
    shape = (3, 70, 300)
    for cores in ([sorted(os.sched_getaffinity(0))], [sorted(os.sched_getaffinity(0))] * 3):
        kernels.set_topology(cores)
        made = pairs(rng, *shape, format, bias=True)
        for source, kind in zip(made, (kernels, reference), strict=True):
            held = kind.ExpertWeights(2, *shape[1:], format, True)
            held.copy(1, source, 2)
            for one, other in zip(held.panels(1), source.panels(2), strict=True):
                assert np.array_equal(one, other)
            assert np.array_equal(held.biases()[1], source.biases()[2])
            assert not held.biases()[0].any()
            with pytest.raises(ArgumentError, match=r"expert: must be in 0..1, got 2"):
                held.copy(2, source, 0)
            with pytest.raises(ArgumentError, match=r"expert: must be in 0..2, got -1"):
                held.copy(0, source, -1)
            for other in ((2, 70, 260, format, True), (2, 70, 300, format, False)):
                with pytest.raises(ArgumentError, match="source: has other sizes"):
                    kind.ExpertWeights(*other).copy(0, source, 0)
        if len(cores) == 3:
            kernels.set_topology(cores[:1])
            with pytest.raises(ArgumentError, match="was cut for other nodes"):
                kernels.ExpertWeights(2, *shape[1:], format, True).copy(0, made[0], 0)


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_shards_hold_and_give_the_same(
    rng: np.random.Generator, format: str, threads: None
) -> None:
    """Weights cut over three nodes: the same panels in a file, the same results but rounding."""
    shape = (3, 70, 300)
    seed = int(rng.integers(1 << 30))
    whole, plain = pairs(np.random.default_rng(seed), *shape, format, bias=True)
    kernels.set_topology([sorted(os.sched_getaffinity(0))] * 3)
    cut, _ = pairs(np.random.default_rng(seed), *shape, format, bias=True)
    for expert in range(3):
        for one, other in (
            *zip(whole.panels(expert), cut.panels(expert), strict=True),
            *zip(whole.dequantize(expert), cut.dequantize(expert), strict=True),
        ):
            assert np.array_equal(one, other)
        for held in (cut, plain):
            copied = [np.full(part.nbytes, 7, np.uint8) for part in whole.panels(expert)]
            held.copy_panels(expert, *copied)
            assert all(map(np.array_equal, copied, whole.panels(expert)))
    x = floats(rng, 40, 70)
    ids, weights = routing(rng, 40, 3, 2)
    out, expected = np.empty_like(x), np.empty_like(x)
    reference.moe(x, plain, ids, weights, expected)
    kernels.moe(x, cut, ids, weights, out)
    # One scale per shard for the activated values of int8, not one per row.
    if format == "int8":
        assert np.linalg.norm(out - expected) <= 0.02 * np.linalg.norm(expected)
    else:
        assert_close(out, expected, format)
    alone = np.empty_like(x)
    for t in range(len(x)):
        row = slice(t, t + 1)
        kernels.moe(x[row], cut, ids[row], weights[row], alone[row])
    assert np.array_equal(alone, out)


def test_submitted_work_is_the_same(isa: str, rng: np.random.Generator) -> None:
    packed, _ = pairs(rng, 6, 70, 50, "int8", bias=True)
    shared, _ = pairs(rng, 1, 70, 33, "bfloat16")
    x = floats(rng, 50, 70)
    ids, weights = routing(rng, 50, 6, 3)
    mask = np.array([1, 1, 0, 1, 1, 1], np.uint8)
    expected = np.ones_like(x)
    options: dict[str, Any] = {"accumulate": True, "activation": GPT_OSS}
    kernels.moe(x, packed, ids, weights, expected, expert_mask_E=mask, shared=shared, **options)
    outs = [np.ones_like(x) for _ in range(3)]
    pending = [
        # The arrays of the call are not held by anyone else.
        kernels.submit_moe(
            x.copy(), packed, ids.copy(), weights.copy(), out, expert_mask_E=mask.copy(),
            shared=shared, **options,
        )
        for out in outs
    ]  # fmt: skip
    del packed, shared
    for work, out in zip(pending, outs, strict=True):
        work.wait(20)
        assert work.done and np.array_equal(out, expected)
    with pytest.raises(ArgumentError, match="^routing_TK: "):
        kernels.submit_moe(x, kernels.ExpertWeights(6, 70, 3), ids, weights[:, :2], outs[0])


def test_order_of_the_choices_does_not_matter(isa: str, rng: np.random.Generator) -> None:
    packed, _ = pairs(rng, 6, 40, 32, "int8:g32")
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


@pytest.mark.parametrize("module", [kernels, reference])
def test_panels_are_copied_to_memory_that_fits(module: Any) -> None:
    experts = module.ExpertWeights(2, 64, 32, "int8")
    gate_up, down = (np.empty_like(part) for part in experts.panels(0))
    read_only = down.copy()
    read_only.flags.writeable = False
    for number, to, message in (
        (2, (gate_up, down), "expert"),
        (0, (gate_up[1:], down), "gate_up"),
        (0, (gate_up, down[:-1]), "down"),
        (0, (gate_up, down.view(np.int8)), "down: must be uint8"),
        (0, (gate_up, read_only), "down"),
    ):
        with pytest.raises(ArgumentError, match=message):
            experts.copy_panels(number, *to)
