"""Rotary position tables from a model's `RopeShape`.

Frequencies and angles are computed in float32 in the order in which `transformers` computes
them, so that long positions round the same way; cosines then come from float64.
"""

import math

import numpy as np
from numpy.typing import NDArray

from inlay.core.model_shape import RopeShape

FloatArray = NDArray[np.float32]


def inverse_frequencies(rope: RopeShape) -> FloatArray:
    """Angle per position of each rotated pair, `[rotary_dim / 2]`.

    Source: llama3 scaling from Meta's Llama 3.1 reference code; YaRN from arXiv 2309.00071;
    LongRoPE from arXiv 2402.13753.
    """
    exponent = np.arange(0, rope.rotary_dim, 2, dtype=np.float32) / np.float32(rope.rotary_dim)
    frequency: FloatArray = (1.0 / np.float32(rope.theta) ** exponent).astype(np.float32)
    if rope.kind == "linear":
        frequency = (frequency / np.float32(rope.factor)).astype(np.float32)
    if rope.kind == "longrope":
        frequency = (frequency / np.asarray(rope.divisors, np.float32)).astype(np.float32)
    if rope.kind == "llama3":
        return _llama3(rope, frequency)
    if rope.kind == "yarn":
        return _yarn(rope, frequency)
    return frequency


def _llama3(rope: RopeShape, frequency: FloatArray) -> FloatArray:
    """Short waves stay, long ones are stretched, those between are blended by wave length."""
    turns = rope.original_max_tokens * frequency / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    blended: FloatArray = (frequency * (blend + (1 - blend) / rope.factor)).astype(np.float32)
    return blended


def _yarn(rope: RopeShape, frequency: FloatArray) -> FloatArray:
    """As llama3, with the blend linear in the index of the pair."""

    def pair_of(turns: float) -> float:
        length = rope.original_max_tokens / (turns * 2 * math.pi)
        return rope.rotary_dim * math.log(length) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    width = high - low if high != low else 0.001
    stretched = np.clip((np.arange(len(frequency)) - low) / width, 0.0, 1.0)
    blend = 1 - stretched
    blended: FloatArray = (frequency * (blend + stretched / rope.factor)).astype(np.float32)
    return blended


def rope_tables(rope: RopeShape, positions: int) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines of positions 0 to `positions - 1`, each `[positions, rotary_dim / 2]`."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse_frequencies(rope)[None, :]
    wide = angles.astype(np.float64)
    cos = (np.cos(wide) * rope.attention_factor).astype(np.float32)
    sin = (np.sin(wide) * rope.attention_factor).astype(np.float32)
    return cos, sin


def query_factors(rope: RopeShape, positions_T: NDArray[np.int32]) -> FloatArray | None:
    """What queries at these positions are multiplied by, `[T]`; None: all by 1.

    Source: the attention of Llama 4, which Ministral 3 has taken over.
    """
    if not rope.query_growth or positions_T.max(initial=0) < rope.original_max_tokens:
        return None
    stretches = np.floor(positions_T / np.float32(rope.original_max_tokens))
    return (1 + rope.query_growth * np.log1p(stretches)).astype(np.float32)
