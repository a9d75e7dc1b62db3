"""Norm and activation: every ISA against the reference, edge values, invariance."""

import numpy as np
import pytest

from inlay import kernels
from inlay.kernels import reference
from tests.native.cases import floats


@pytest.mark.parametrize("cols", [1, 5, 16, 64, 100, 1030])
def test_rms_norm_equals_reference(isa: str, rng: np.random.Generator, cols: int) -> None:
    weight = floats(rng, cols)
    for rows in (0, 1, 5, 300):
        x = floats(rng, rows, cols + 2)[:, :cols]
        out, expected = np.empty((rows, cols), np.float32), np.empty((rows, cols), np.float32)
        kernels.rms_norm(x, weight, 1e-6, out)
        reference.rms_norm(x, weight, 1e-6, expected)
        assert np.allclose(out, expected, rtol=2e-6, atol=1e-7)
        alone = np.empty_like(out)
        for i in range(rows):
            kernels.rms_norm(x[i : i + 1], weight, 1e-6, alone[i : i + 1])
        assert np.array_equal(alone, out)
        kernels.rms_norm(x, weight, 1e-6, x)
        assert np.array_equal(x, out)


@pytest.mark.parametrize("cols", [1, 7, 32, 130])
@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul"])
def test_gates_equal_reference(isa: str, rng: np.random.Generator, cols: int, name: str) -> None:
    for rows in (0, 1, 5, 200):
        gate_up = floats(rng, rows, 2 * cols) * 20
        out, expected = np.empty((rows, cols), np.float32), np.empty((rows, cols), np.float32)
        getattr(kernels, name)(gate_up, out)
        getattr(reference, name)(gate_up, expected)
        assert np.allclose(out, expected, rtol=2e-6, atol=1e-6)


def test_gelu_is_that_of_pytorch(isa: str) -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-9, 9, 3001, dtype=np.float32)[None]
    out = np.empty_like(x)
    kernels.gelu_mul(np.concatenate([x, np.ones_like(x)], axis=1), out)
    exact = torch.nn.functional.gelu(torch.from_numpy(x).double(), approximate="tanh").numpy()
    assert np.abs(out - exact).max() < 2e-6


def test_gelu_of_extreme_values(isa: str) -> None:
    gate = np.array([[-1e30, -100, 0, 20, 1e30, np.inf, np.nan]], np.float32)
    out = np.empty_like(gate)
    kernels.gelu_mul(np.concatenate([gate, np.ones_like(gate)], axis=1), out)
    assert np.allclose(out[0, :5], [0, 0, 0, 20, 1e30], rtol=1e-6, atol=1e-6)
    assert out[0, 5] == np.inf
    assert np.isnan(out[0, 6])


def test_silu_of_extreme_values(isa: str) -> None:
    gate = np.array([[-1e30, -100, -88, -20, 0, 20, 100, 1e30, np.inf, np.nan]], np.float32)
    out = np.empty_like(gate)
    kernels.silu_mul(np.concatenate([gate, np.ones_like(gate)], axis=1), out)
    # exp(88) stands for anything above it.
    assert (np.abs(out[0, :3]) <= 6.1e-39 * np.abs(gate[0, :3])).all()
    assert np.allclose(out[0, 3:8], [-20 / (1 + np.exp(20)), 0, 20, 100, 1e30], rtol=1e-6)
    assert out[0, 8] == np.inf
    assert np.isnan(out[0, 9])


def test_exp_is_accurate(isa: str) -> None:
    """Seen through silu: silu(x) = x / (1 + exp(-x))."""
    x = np.linspace(-60, 60, 20001, dtype=np.float32)[None]
    out = np.empty_like(x)
    kernels.silu_mul(np.concatenate([x, np.ones_like(x)], axis=1), out)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    nonzero = exact != 0
    assert np.abs(out[nonzero] / exact[nonzero] - 1).max() < 4e-7
