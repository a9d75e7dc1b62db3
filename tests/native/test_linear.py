"""Dense layers: every ISA against the reference, and the same bits in every company."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from inlay import kernels
from inlay.kernels import reference
from tests.native.cases import floats

SHAPES = [
    (0, 64, 64), (1, 1, 1), (1, 64, 128), (5, 17, 3), (17, 130, 65), (33, 100, 16), (7, 1027, 70),
    (100, 96, 33), (200, 40, 129),
]  # fmt: skip


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    if not expected.size:
        return 0.0
    return float(np.abs(result - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference(
    isa: str, rng: np.random.Generator, shape: tuple[int, int, int], dtype: str
) -> None:
    t, k, n = shape
    x, w, bias = floats(rng, t, k), floats(rng, n, k), floats(rng, n)
    for use_bias, accumulate in ((False, False), (True, False), (True, True)):
        out = floats(rng, t, n)
        expected = out.copy()
        arguments = (bias if use_bias else None, accumulate)
        reference.linear(x, reference.pack_linear(w, dtype), expected, *arguments)
        kernels.linear(
            x, kernels.pack_linear(w, dtype), out, bias_N=arguments[0], accumulate=accumulate
        )
        assert relative_error(out, expected) < 3e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_alone_has_the_same_bits(
    isa: str, rng: np.random.Generator, dtype: str, threads: None
) -> None:
    x = floats(rng, 211, 1100)
    weight = kernels.pack_linear(floats(rng, 200, 1100), dtype)
    together = np.empty((211, 200), np.float32)
    kernels.linear(x, weight, together)
    for num_threads in (1, 3):
        kernels.set_num_threads(num_threads)
        for step in (1, 6, 97):
            pieces = np.empty_like(together)
            for i in range(0, len(x), step):
                kernels.linear(x[i : i + step], weight, pieces[i : i + step])
            assert np.array_equal(pieces, together)


def test_strided_rows(isa: str, rng: np.random.Generator) -> None:
    wide, w = floats(rng, 20, 50), floats(rng, 24, 30)
    out = np.zeros((20, 40), np.float32)
    kernels.linear(wide[::-1, 10:40], kernels.pack_linear(w), out[:, 8:32])
    assert np.allclose(out[:, 8:32], wide[::-1, 10:40] @ w.T, atol=1e-4)
    assert not out[:, :8].any() and not out[:, 32:].any()


def test_packing_keeps_every_bit(rng: np.random.Generator) -> None:
    for shape in ((1, 1), (65, 7), (130, 64)):
        w = floats(rng, *shape)
        weight = kernels.pack_linear(w)
        assert (weight.shape, weight.dtype) == (shape, "float32")
        assert np.array_equal(weight.unpack(), w)
        bits = kernels.pack_linear(w, "bfloat16").unpack()
        assert np.array_equal(bits, torch.from_numpy(w).bfloat16().view(torch.uint16).numpy())
        assert np.array_equal(kernels.pack_linear(bits).unpack(), bits)
        widened = kernels.pack_linear(bits, "float32").unpack()
        assert np.array_equal(kernels.pack_linear(widened, "bfloat16").unpack(), bits)


def test_bf16_rounding_of_special_values() -> None:
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8]
    w = np.array([values], np.float32)
    expected = torch.from_numpy(w).bfloat16().view(torch.uint16).numpy()
    got = kernels.pack_linear(w, "bfloat16").unpack()
    same = (got == expected) | np.isnan(w)
    assert same.all()
    assert np.isnan((got.astype(np.uint32) << 16).view(np.float32)[0, 4])


def test_rows_can_come_in_pieces(rng: np.random.Generator) -> None:
    w = floats(rng, 150, 33)
    weight = kernels.LinearWeight(150, 33, "float32")
    for first, end in ((0, 10), (10, 100), (100, 150)):
        weight.set_rows(first, w[first:end])
    assert np.array_equal(weight.unpack(), w)


def test_torch_tensors(isa: str, rng: np.random.Generator) -> None:
    x, w = torch.from_numpy(floats(rng, 5, 32)), torch.from_numpy(floats(rng, 16, 32))
    out = torch.empty(5, 16)
    kernels.linear(x, kernels.pack_linear(w.bfloat16()), out)
    assert torch.allclose(out, x @ w.bfloat16().float().T, atol=1e-5)


@settings(max_examples=60)
@given(
    t=st.integers(0, 40),
    k=st.integers(1, 90),
    n=st.integers(1, 150),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 9),
)
def test_any_shape(t: int, k: int, n: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = floats(rng, t, k), floats(rng, n, k)
    expected = np.empty((t, n), np.float32)
    reference.linear(x, reference.pack_linear(w, dtype), expected)
    for isa in kernels.available_isas():
        out = np.full((t, n), np.nan, np.float32)
        with kernels.force_isa(isa):
            kernels.linear(x, kernels.pack_linear(w, dtype), out)
        assert np.allclose(out, expected, atol=3e-5)
