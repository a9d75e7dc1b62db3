"""Training routed experts: every ISA and format against the reference in float64."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from inlay import kernels
from inlay.core.errors import ArgumentError
from inlay.kernels import reference
from tests.native.cases import floats, pairs, routing

# experts, hidden, width, top_k, rank, tokens
SHAPES = [
    (4, 200, 96, 3, 8, 130),  # more than one block of rows
    (3, 33, 17, 2, 3, 5),
    (5, 64, 100, 5, 1, 17),
    (1, 7, 1, 1, 2, 9),
    (3, 130, 160, 2, 5, 40),
]
SCALE = 1.5


def tolerance(format: str) -> float:
    return 1e-5 if format == "float32" else 1e-2


@dataclass(frozen=True)
class Case:
    """The arguments of both passes, and what they should give, in float64."""

    packed: kernels.ExpertWeights
    x: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    lora: kernels.ExpertLora | None
    grad_out: np.ndarray
    options: dict[str, Any]
    expected: list[np.ndarray]

    def run(self, recompute: bool = False) -> list[np.ndarray]:
        out = np.full_like(self.x, np.nan)
        saved = kernels.moe_saving(
            self.x, self.packed, self.ids, self.weights, out,
            lora=self.lora, recompute=recompute, **self.options,
        )  # fmt: skip
        grads = kernels.moe_backward(saved, self.grad_out)
        return [out, grads.x_TM, grads.routing_TK, *(grads.lora or ())]

    def check(self, found: list[np.ndarray], tolerance: float) -> None:
        for index, (ours, exact) in enumerate(zip(found, self.expected, strict=True)):
            error = np.linalg.norm(ours - exact)
            assert error <= tolerance * np.linalg.norm(exact), (index, error)


@cache
def case(
    shape: tuple[int, int, int, int, int, int],
    format: str,
    *,
    bias: bool = False,
    with_lora: bool = True,
    dropout: float = 0.0,
) -> Case:
    num_experts, hidden, width, top_k, rank, tokens = shape
    rng = np.random.default_rng(7)
    packed, plain = pairs(rng, num_experts, hidden, width, format, bias)
    x, grad_out = floats(rng, tokens, hidden), floats(rng, tokens, hidden)
    ids, weights = routing(rng, tokens, num_experts, top_k)
    activation = kernels.SILU
    if bias:
        # Some beyond the limit, where the gradient jumps: rounding to bf16 moves values across it.
        x, limit = 5 * x, 7 if format == "float32" else np.inf
        activation = kernels.Activation(alpha=1.702, limit=limit, up_offset=1)
        ids[::3, 0] = -1
        weights[ids < 0] = np.nan  # not looked at
    sizes = ((rank, hidden), (width, rank), (rank, hidden), (width, rank))
    sizes += ((rank, width), (hidden, rank))
    matrices = [floats(rng, num_experts, *size) / size[1] ** 0.5 for size in sizes]
    names = list(kernels.ExpertLora.__dataclass_fields__)[:6]
    lora = kernels.ExpertLora(**dict(zip(names, matrices, strict=True)), scale=SCALE)
    exact = [array.astype(np.float64) for array in (x, np.nan_to_num(weights), *matrices)]
    out = np.empty_like(exact[0])
    saved = reference.moe_saving(
        exact[0], plain, ids, exact[1], out, tuple(exact[2:]) if with_lora else None, SCALE,
        dropout, 11, activation.alpha, activation.limit, activation.up_offset,
    )  # fmt: skip
    grads = [np.empty_like(array) for array in exact]
    given = tuple(grads[2:]) if with_lora else None
    reference.moe_backward(saved, grad_out.astype(np.float64), grads[0], grads[1], given)
    options = {"activation": activation, "dropout": dropout, "seed": 11}
    expected = [out, *(grads if with_lora else grads[:2])]
    chosen = lora if with_lora else None
    return Case(packed, x, ids, weights, chosen, grad_out, options, expected)


@pytest.mark.parametrize("format", kernels.FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference(
    isa: str, shape: tuple[int, int, int, int, int, int], format: str
) -> None:
    run = case(shape, format)
    run.check(run.run(), tolerance(format))


@pytest.mark.parametrize("format, most", [("bfloat16", 1e-2), ("int8", 2e-2)])
def test_near_the_weights_before_packing(isa: str, format: str, most: float) -> None:
    case(SHAPES[0], "float32").check(case(SHAPES[0], format).run(), most)


@pytest.mark.parametrize("format", ["float32", "bfloat16", "int8"])
def test_many_rows_and_slices(isa: str, format: str) -> None:
    """More rows of an expert than are multiplied at a time, and slices with ragged ends."""
    run = case((1, 600, 330, 1, 2, 420), format)
    run.check(run.run(), tolerance(format))


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_everything_at_once_equals_reference(isa: str, format: str) -> None:
    """Biases, a clamped activation, negative ids, dropout, and values computed again."""
    run = case(SHAPES[4], format, bias=True, dropout=0.25)
    run.check(run.run(recompute=True), 3 * tolerance(format))


@pytest.mark.parametrize("format", ["float32", "bfloat16", "int4:g32"])
def test_without_lora(isa: str, format: str) -> None:
    run = case(SHAPES[0], format, with_lora=False)
    run.check(run.run(), tolerance(format))


@pytest.mark.parametrize("format", ["float32", "bfloat16", "int8"])
def test_the_same_bits_with_any_number_of_threads(isa: str, format: str, threads: None) -> None:
    run = case(SHAPES[4], format, dropout=0.1)
    found = []
    for num_threads in (1, 3):
        kernels.set_num_threads(num_threads)
        found += [run.run(), run.run(recompute=True)]
    for other in found[1:]:
        assert all(map(np.array_equal, found[0], other))


@pytest.mark.parametrize("format", ["float32", "bfloat16", "uint4:g32"])
def test_a_token_alone_has_the_same_bits(isa: str, format: str) -> None:
    """Output, and the gradients of the token's own input and weights."""
    run = case(SHAPES[0], format)
    together = run.run()
    for t in (0, 63, 129):
        row = slice(t, t + 1)
        out = np.empty_like(run.x[row])
        saved = kernels.moe_saving(
            run.x[row], run.packed, run.ids[row], run.weights[row], out, lora=run.lora
        )
        grads = kernels.moe_backward(saved, run.grad_out[row])
        for alone, whole in zip((out, grads.x_TM, grads.routing_TK), together, strict=False):
            assert np.array_equal(alone, whole[row])


@pytest.mark.parametrize("format", ["float32", "bfloat16", "int8", "int4:g128"])
def test_shards_give_the_same(format: str, threads: None) -> None:
    """Weights cut over three nodes."""
    run = case((3, 70, 300, 2, 4, 40), format, bias=True, dropout=0.2)
    kernels.set_topology([sorted(os.sched_getaffinity(0))] * 3)
    cut, _ = pairs(np.random.default_rng(7), 3, 70, 300, format, bias=True)
    found = Case(cut, *list(run.__dict__.values())[1:]).run()
    run.check(found, 3 * tolerance(format))


def test_what_is_kept_is_as_much_as_it_says() -> None:
    run = case(SHAPES[0], "bfloat16")
    arguments = (run.x, run.packed, run.ids, run.weights, np.empty_like(run.x))
    kept = kernels.moe_saving(*arguments, lora=run.lora).nbytes
    again = kernels.moe_saving(*arguments, lora=run.lora, recompute=True).nbytes
    num_pairs = run.ids.size
    assert num_pairs * 2 * 96 * 2 <= kept - again <= num_pairs * (2 * 128 * 2 + 128) + 4096
    assert again <= len(run.x) * (2 * 224 + 128) + num_pairs * 3 * 8 * 4 + 8192


def test_no_tokens() -> None:
    run = case(SHAPES[1], "int8")
    none = slice(0, 0)
    saved = kernels.moe_saving(
        run.x[none], run.packed, run.ids[none], run.weights[none], np.empty_like(run.x[none]),
        lora=run.lora,
    )  # fmt: skip
    grads = kernels.moe_backward(saved, run.grad_out[none])
    assert grads.x_TM.shape == (0, 33) and grads.lora is not None
    assert not any(matrix.any() for matrix in grads.lora)


def test_experts_without_tokens_have_no_gradient(rng: np.random.Generator) -> None:
    run = case(SHAPES[0], "bfloat16")
    ids = np.where(run.ids == 2, -1, run.ids)
    saved = kernels.moe_saving(
        run.x, run.packed, ids, run.weights, np.empty_like(run.x), lora=run.lora
    )
    grads = kernels.moe_backward(saved, run.grad_out)
    assert grads.lora is not None
    for matrix in grads.lora:
        assert not matrix[2].any() and matrix[1].any()
    assert not grads.routing_TK[ids < 0].any()


def test_what_was_saved_is_used_once(isa: str) -> None:
    run = case(SHAPES[1], "float32")
    saved = kernels.moe_saving(
        run.x, run.packed, run.ids, run.weights, np.empty_like(run.x), lora=run.lora
    )
    kernels.moe_backward(saved, run.grad_out)
    assert saved.nbytes == 0
    with pytest.raises(ArgumentError, match="^saved: "):
        kernels.moe_backward(saved, run.grad_out)
