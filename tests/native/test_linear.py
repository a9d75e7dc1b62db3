"""Dense layers: every ISA against the reference, and the same bits in every company."""

from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

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


@cache
def runs(shape: tuple[int, int, int], format: str) -> list[tuple[Any, ...]]:
    """Calls and what they should give, computed once for all variants."""
    t, k, n = shape
    rng = np.random.default_rng(7)
    x, w, bias = floats(rng, t, k), floats(rng, n, k), floats(rng, n)
    packed, plain = kernels.pack_linear(w, format), reference.pack_linear(w, format)
    result = []
    for bias_N, accumulate in ((None, False), (bias, False), (bias, True)):
        before = floats(rng, t, n)
        expected = before.copy()
        reference.linear(x, plain, expected, bias_N, accumulate)
        options = {"bias_N": bias_N, "accumulate": accumulate}
        result.append((x, packed, before, options, expected))
    return result


@pytest.mark.parametrize("format", kernels.FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference(isa: str, shape: tuple[int, int, int], format: str) -> None:
    for x, packed, before, options, expected in runs(shape, format):
        out = before.copy()
        kernels.linear(x, packed, out, **options)
        assert relative_error(out, expected) < 3e-6


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_a_token_alone_has_the_same_bits(
    isa: str, rng: np.random.Generator, format: str, threads: None
) -> None:
    x = floats(rng, 211, 1100)
    weight = kernels.pack_linear(floats(rng, 200, 1100), format)
    together = np.empty((211, 200), np.float32)
    kernels.linear(x, weight, together)
    for num_threads in (1, 3):
        kernels.set_num_threads(num_threads)
        for step in (1, 6, 97):
            pieces = np.empty_like(together)
            for i in range(0, len(x), step):
                kernels.linear(x[i : i + step], weight, pieces[i : i + step])
            assert np.array_equal(pieces, together)


@pytest.mark.parametrize("format", [f for f in kernels.FORMATS if f.startswith("int")])
def test_extreme_rows_of_activations(isa: str, rng: np.random.Generator, format: str) -> None:
    """Rows of zeros, of tiny and huge values give what they should, a NaN only spoils its row."""
    x, w = floats(rng, 6, 130), floats(rng, 70, 130)
    x[0], x[1] = 0, x[1] * np.float32(1e-36)
    x[2] *= np.float32(1e30)
    x[3, 7], x[4, 129] = np.nan, np.inf
    out, expected = np.empty((6, 70), np.float32), np.empty((6, 70), np.float32)
    kernels.linear(x, kernels.pack_linear(w, format), out)
    reference.linear(x, reference.pack_linear(w, format), expected)
    assert not out[0].any()
    assert np.isfinite(out[[0, 1, 2, 5]]).all() and np.isnan(out[3:5]).all()
    for row in (1, 2, 5):
        assert np.allclose(out[row], expected[row], rtol=1e-4, atol=1e-6 * np.abs(out[row]).max())


@pytest.mark.parametrize("format", ["int8", "int8:g32", "int4:g32"])
def test_largest_integers_do_not_overflow(isa: str, format: str) -> None:
    """Equal magnitudes of both signs in the longest rows: the largest integer sums there are."""
    k = 65536
    signs = np.where(np.arange(64) % 2, 1, -1).astype(np.float32)
    w = np.repeat(signs[:, None], k, axis=1)
    x = np.stack([np.ones(k, np.float32), -np.ones(k, np.float32)])
    out = np.empty((2, 64), np.float32)
    kernels.linear(x, kernels.pack_linear(w, format), out)
    assert np.allclose(out, x @ w.T, rtol=0.01)


def test_strided_rows(isa: str, rng: np.random.Generator) -> None:
    wide, w = floats(rng, 20, 50), floats(rng, 24, 30)
    out = np.zeros((20, 40), np.float32)
    kernels.linear(wide[::-1, 10:40], kernels.pack_linear(w), out[:, 8:32])
    assert np.allclose(out[:, 8:32], wide[::-1, 10:40] @ w.T, atol=1e-4)
    assert not out[:, :8].any() and not out[:, 32:].any()


def test_torch_tensors(isa: str, rng: np.random.Generator) -> None:
    x, w = torch.from_numpy(floats(rng, 5, 32)), torch.from_numpy(floats(rng, 16, 32))
    out = torch.empty(5, 16)
    kernels.linear(x, kernels.pack_linear(w.bfloat16()), out)
    assert torch.allclose(out, x.bfloat16().float() @ w.bfloat16().float().T, atol=1e-5)


@given(
    t=st.integers(0, 40),
    k=st.integers(1, 90),
    n=st.integers(1, 150),
    format=st.sampled_from(kernels.FORMATS),
    seed=st.integers(0, 9),
)
def test_any_shape(t: int, k: int, n: int, format: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = floats(rng, t, k), floats(rng, n, k)
    expected = np.empty((t, n), np.float32)
    reference.linear(x, reference.pack_linear(w, format), expected)
    for isa in kernels.available_isas():
        out = np.full((t, n), np.nan, np.float32)
        with kernels.force_isa(isa):
            kernels.linear(x, kernels.pack_linear(w, format), out)
        assert np.allclose(out, expected, atol=3e-5)


@pytest.mark.parametrize("format", kernels.FORMATS)
@pytest.mark.parametrize("heads,k,n", [(1, 17, 3), (5, 64, 130), (3, 96, 64), (7, 40, 1)])
def test_a_matrix_for_each_head(
    isa: str, rng: np.random.Generator, heads: int, k: int, n: int, format: str
) -> None:
    matrices = floats(rng, heads, n, k)
    stride = kernels.head_rows(n)
    packed = kernels.LinearWeight(heads * stride, k, format)
    for head, matrix in enumerate(matrices):
        packed.set_rows(head * stride, matrix)
    for tokens in (0, 1, 5, 70):
        x = floats(rng, tokens, heads + 1, k + 3)[:, 1:, 3:]
        wide = np.full((tokens, heads, n + 2), np.nan, np.float32)
        kernels.linear_heads(x, packed, wide[..., :n])
        for head, matrix in enumerate(matrices):
            alone = np.empty((tokens, n), np.float32)
            kernels.linear(x[:, head], kernels.pack_linear(matrix, format), alone)
            assert np.array_equal(wide[:, head, :n], alone)
        assert np.isnan(wide[..., n:]).all()
        one = np.empty((1, heads, n), np.float32)
        for token in range(tokens):
            kernels.linear_heads(x[token : token + 1], packed, one)
            assert np.array_equal(one[0], wide[token, :, :n])
