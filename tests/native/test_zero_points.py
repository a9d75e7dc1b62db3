"""uint4:g32: codes of files with their zero points are kept, and what has no place is refused."""

from typing import Any

import numpy as np
import pytest

from inlay import kernels
from inlay.core.errors import ArgumentError
from inlay.kernels import reference
from tests.native.cases import floats

FORMAT = "uint4:g32"
MODULES = pytest.mark.parametrize("module", [kernels, reference], ids=["native", "reference"])


def lines(rng: np.random.Generator, n: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes, and scales of all sizes with zero points of all places."""
    q = rng.integers(0, 16, (n, 32 * groups)).astype(np.int8)
    scales = np.zeros((n, groups, 2), np.float32)
    scales[..., 0] = np.exp2(rng.integers(-60, 60, (n, groups))) * rng.choice([-1, 1], (n, groups))
    scales[..., 1] = rng.integers(-32767, 32768, (n, groups)) / 256
    return q, scales.reshape(n, 2 * groups)


def meant(q: np.ndarray, scales: np.ndarray) -> np.ndarray:
    grouped = q.reshape(len(q), -1, 32).astype(np.float64)
    values = (grouped - scales[:, 1::2, None]) * scales[:, 0::2, None]
    return values.reshape(q.shape)


@MODULES
def test_codes_and_zero_points_are_kept(isa: str, rng: np.random.Generator, module: Any) -> None:
    q, scales = lines(rng, 130, 9)
    weight = module.LinearWeight(130, 288, FORMAT)
    for first in range(0, 130, 50):
        weight.set_rows_quantized(first, q[first : first + 50], scales[first : first + 50])
    assert np.array_equal(weight.dequantize(), meant(q, scales))


@pytest.mark.parametrize("tokens", [1, 3, 7, 40])
def test_products(isa: str, rng: np.random.Generator, tokens: int) -> None:
    """Of activations that int8 holds exactly, beside exact sums."""
    q, scales = lines(rng, 100, 5)
    scales[:, 0::2] = np.exp2(rng.integers(-3, 3, (100, 5)))
    weight = kernels.LinearWeight(100, 160, FORMAT)
    weight.set_rows_quantized(0, q, scales)
    x = rng.integers(-126, 127, (tokens, 160)).astype(np.float32)
    x[:, ::32] = 127  # the scale of each group is 1
    out = np.empty((tokens, 100), np.float32)
    kernels.linear(x, weight, out)
    exact = x.astype(np.float64) @ meant(q, scales).T
    sizes = np.abs(x).astype(np.float64) @ np.abs(meant(q, scales)).T
    assert (np.abs(out - exact) <= 1e-6 * sizes).all()


@MODULES
@pytest.mark.parametrize(
    ("place", "value"), [("zero", 128.0), ("zero", np.nan), ("scale", np.inf), ("q", 16), ("q", -1)]
)
def test_what_has_no_place_is_refused(
    isa: str, rng: np.random.Generator, module: Any, place: str, value: float
) -> None:
    q, scales = lines(rng, 70, 2)
    if place == "q":
        q[66, 40] = value
    else:
        scales[66, 2 + (place == "zero")] = value
    weight = module.LinearWeight(70, 64, FORMAT)
    message = "^q_NK: row 66 holds a scale that is not finite, .* a zero point beyond 127.99, or an"
    with pytest.raises(ArgumentError, match=message):
        weight.set_rows_quantized(0, q, scales)
    with pytest.raises(ArgumentError, match=r"^scales_NG: .* 4.*twice the groups of a row"):
        weight.set_rows_quantized(0, np.clip(q, 0, 15), scales[:, :2])


def test_groups_far_from_zero(isa: str, rng: np.random.Generator) -> None:
    """A group is off by at most a part of its largest weight, however alike its weights are."""
    w = (floats(rng, 60, 320) * np.exp2(-rng.integers(0, 20, (60, 1))) + 5).astype(np.float32)
    w[7] = -3.25
    held = kernels.pack_linear(w, FORMAT).dequantize()
    off = np.abs(held - w).reshape(60, -1, 32)
    parts = np.maximum(np.ptp(w.reshape(60, -1, 32), axis=-1) / 15, 5 / 120)
    assert (off <= 1.1 * parts[..., None]).all()
