"""Floats as the types of GGUF files. Loads no torch.

The format's own library writes the plain types; those of llama.cpp's K family that common files
hold (Q4_K, Q5_K, Q6_K) are written here, each group by its least and greatest value alone, where
llama.cpp searches for better scales.
Source of the layouts: ggml's specification of its blocks.
"""

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

_BLOCK = 256  # weights that share two scales in the K types
_MOST_SCALE = 63  # 6 bits

Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, np.dtype[Any]]

_OF_THE_LIBRARY = (
    Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0,
)  # fmt: skip


def can_encode(kind: Type) -> bool:
    """Whether `encode` takes the type."""
    return kind in _OF_THE_LIBRARY or kind in _K_TYPES


def encode(values: Floats, kind: Type) -> Bytes:
    """Blocks of a type.

    Args:
        values: `[..., columns]`, float32, finite; columns are whole blocks of the type.
        kind: one that `can_encode` takes.

    Returns:
        uint8, `[..., bytes of a row]`, contiguous.
    """
    if kind in _K_TYPES:
        blocks = _K_TYPES[kind](values.reshape(-1, _BLOCK))
        return blocks.reshape(*values.shape[:-1], -1)
    return np.ascontiguousarray(gguf.quantize(values, kind)).view(np.uint8)


def _q4_k(x: Floats) -> Bytes:
    heads, codes = _lines(x, 15)
    return np.hstack((heads, _pairs(codes)))


def _q5_k(x: Floats) -> Bytes:
    heads, codes = _lines(x, 31)
    # Bit g of a byte is the fifth of a code of group g.
    fifth = np.zeros((len(x), 32), np.uint8)
    for group in range(8):
        fifth |= (codes[:, group] >> 4) << group
    return np.hstack((heads, fifth, _pairs(codes & 15)))


def _q6_k(x: Floats) -> Bytes:
    groups = x.reshape(-1, 16, 16)
    # The weight that is furthest from 0 gets the code -32.
    peaks = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)[..., 0]
    steps = peaks / -32
    of_block = np.take_along_axis(steps, np.abs(steps).argmax(-1, keepdims=True), -1)
    scale = (of_block / -128).astype(np.float16)
    whole = np.rint(_divided(steps, scale.astype(np.float32))).clip(-128, 127)
    step = scale.astype(np.float32) * whole
    codes = (np.rint(_divided(groups, step[..., None])).clip(-32, 31) + 32).astype(np.uint8)
    half = codes.reshape(-1, 2, 128)
    low, high = (half & 15).reshape(-1, 2, 2, 64), (half >> 4).reshape(-1, 2, 4, 32)
    lows = low[:, :, 0] | low[:, :, 1] << 4
    highs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    return np.hstack(
        (
            lows.reshape(len(x), -1),
            highs.reshape(len(x), -1),
            whole.astype(np.int8).view(np.uint8),
            scale.view(np.uint8),
        )
    )


def _lines(x: Floats, most: int) -> tuple[Bytes, Bytes]:
    """Heads of blocks, and codes `[blocks, 8, 32]`: a weight is `step * code - fall`."""
    groups = x.reshape(-1, 8, 32)
    falls = -np.minimum(groups.min(-1), 0)
    fall_scale = (falls.max(-1, keepdims=True) / _MOST_SCALE).astype(np.float16)
    fall_codes = _scale_codes(falls, fall_scale)
    fall = fall_codes * fall_scale.astype(np.float32)
    steps = np.maximum(groups.max(-1) + fall, 0) / most
    step_scale = (steps.max(-1, keepdims=True) / _MOST_SCALE).astype(np.float16)
    step_codes = _scale_codes(steps, step_scale)
    step = step_codes * step_scale.astype(np.float32)
    codes = np.rint(_divided(groups + fall[..., None], step[..., None])).clip(0, most)
    heads = (step_scale.view(np.uint8), fall_scale.view(np.uint8), _packed(step_codes, fall_codes))
    return np.hstack(heads), codes.astype(np.uint8)


def _scale_codes(values: Floats, scale: np.ndarray[Any, np.dtype[np.float16]]) -> Bytes:
    whole = np.rint(_divided(values, scale.astype(np.float32)))
    codes: Bytes = whole.clip(0, _MOST_SCALE).astype(np.uint8)
    return codes


def _packed(steps: Bytes, falls: Bytes) -> Bytes:
    """6 bits each in 12 bytes: the first four of both have a byte of their own, whose high two bits
    are those of the last four; the low ones of these share four more bytes.
    """
    first, last = slice(0, 4), slice(4, 8)
    return np.hstack(
        (
            steps[:, first] | steps[:, last] >> 4 << 6,
            falls[:, first] | falls[:, last] >> 4 << 6,
            steps[:, last] & 15 | (falls[:, last] & 15) << 4,
        )
    )


def _pairs(codes: Array) -> Bytes:
    """Low halves of 32 bytes are one group, high ones the next."""
    both: Array = codes[:, 0::2] | codes[:, 1::2] << 4
    return both.reshape(len(codes), -1)


def _divided(values: Array, by: Array) -> Array:
    """0 where the divisor is 0."""
    quotients: Array = np.divide(
        values, by, out=np.zeros(np.broadcast_shapes(values.shape, by.shape), np.float32),
        where=by != 0,
    )  # fmt: skip
    return quotients


_K_TYPES: dict[Type, Callable[[Floats], Bytes]] = {
    Type.Q4_K: _q4_k,
    Type.Q5_K: _q5_k,
    Type.Q6_K: _q6_k,
}
