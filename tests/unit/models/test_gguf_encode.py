"""Floats as types of GGUF files, beside what the format's own library reads of them."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from inlay.models.gguf.encode import can_encode, encode

# Root mean square of the errors beside that of normal weights.
ERRORS = {
    Type.F32: 0.0,
    Type.F16: 3e-4,
    Type.BF16: 3e-3,
    Type.Q8_0: 0.007,
    Type.Q6_K: 0.02,
    Type.Q5_1: 0.05,
    Type.Q5_K: 0.05,
    Type.Q5_0: 0.06,
    Type.Q4_1: 0.1,
    Type.Q4_K: 0.1,
    Type.Q4_0: 0.12,
}
K_TYPES = [kind for kind in ERRORS if kind.name.endswith("_K")]


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.02, shape).astype(np.float32)


def read(data: np.ndarray, kind: Type) -> np.ndarray:
    return np.array(gguf.dequantize(data, kind), np.float32)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.name)
def test_errors_are_those_of_the_type(kind: Type) -> None:
    assert can_encode(kind)
    values = weights(3, 5, 512)
    data = encode(values, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    assert data.dtype == np.uint8 and data.shape == (3, 5, 512 // block * size)
    stored = data.view({Type.F32: np.float32, Type.F16: np.float16}.get(kind, np.uint8))
    error = np.sqrt(np.square(read(stored, kind) - values).mean() / np.square(values).mean())
    assert error <= ERRORS[kind]


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
def test_each_weight_is_within_its_groups_step(kind: Type) -> None:
    values = weights(64, 256) * np.logspace(-6, 4, 64, dtype=np.float32)[:, None]
    group, codes = (16, 32) if kind == Type.Q6_K else (32, 15 if kind == Type.Q4_K else 31)
    groups = values.reshape(64, -1, group)
    spread = np.abs(groups).max(-1, keepdims=True)
    if kind != Type.Q6_K:
        spread = groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)
    # Half a step; scales are whole multiples of a 63rd or 128th of the block's largest, and that is
    # a float16, of which the least is 6e-8.
    most_scale = 128 if kind == Type.Q6_K else 63
    half = 1.01 if kind == Type.Q6_K else 0.51  # there -32 is a code and 32 is none
    of_scales = spread.max(axis=1, keepdims=True) / most_scale / 2
    least = 3e-8 * most_scale * codes
    off = np.abs(read(encode(values, kind), kind).reshape(groups.shape) - groups)
    assert (off <= half * spread / codes + 1.1 * of_scales + least).all()


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
def test_weights_that_a_file_holds_stay_near(kind: Type) -> None:
    """Merging nothing changes next to nothing."""
    held = read(encode(weights(40, 256), kind), kind)
    again = read(encode(held, kind), kind)
    assert np.sqrt(np.square(again - held).mean() / np.square(held).mean()) < ERRORS[kind] / 2


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e-12])
def test_weights_that_are_all_the_same(kind: Type, value: float) -> None:
    values = np.full((2, 256), value, np.float32)
    np.testing.assert_allclose(read(encode(values, kind), kind), values, rtol=0.01, atol=1e-6)


def test_types_that_are_not_written() -> None:
    assert not any(map(can_encode, (Type.Q2_K, Type.Q3_K, Type.IQ4_XS, Type.MXFP4)))
