"""Blocks of GGUF types: what the format's own library says of them, and their place in panels."""

from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import NotFiniteError
from inlay.core.weight_format import WeightFormat
from inlay.kernels._checks import F32, array_of, check, check_size

Bytes = npt.NDArray[np.uint8]

# Where two bytes of a block lie that are in no word, of types that have such.
_HALF_AT = {"q6_k": 208, "q3_k": 108, "tq2_0": 64, "tq1_0": 52}


def check_no_blocks(format: WeightFormat) -> None:
    """Raise for a format that floats do not become."""
    check(
        not format.block,
        f"format: floats do not become '{format.name}', whose blocks only files hold; "
        "set_rows_blocks and set_blocks take those",
    )


def checked_blocks(blocks: Any, format: WeightFormat, k: int, name: str) -> Bytes:
    """Rows of k weights as a file has them."""
    check(
        bool(format.block),
        f"format: '{format.name}' has no blocks; use set_rows or set_quantized",
    )
    array: Bytes = array_of(blocks, name, 2, np.uint8)
    check_size(array, name, 1, format.row_bytes(k), "the bytes of a row of blocks")
    bad = np.flatnonzero(~np.isfinite(values_of(array, format)).all(axis=1))
    if len(bad):
        raise NotFiniteError(
            f"{name}: row {bad[0]} holds a scale that is a NaN or an infinity; weights must be "
            "finite"
        )
    return array


def values_of(blocks: Bytes, format: WeightFormat) -> F32:
    """The weights of rows of blocks, by the library of the format."""
    import gguf

    kind = gguf.GGMLQuantizationType[format.name.upper()]
    with np.errstate(invalid="ignore", over="ignore"):
        values: F32 = gguf.dequantize(np.ascontiguousarray(blocks), kind)
    return values.reshape(len(blocks), -1)


_STRIP = 16  # columns whose blocks lie together


def panels_of(blocks: Bytes, format: WeightFormat) -> Bytes:
    """The bytes of whole panels that hold so many rows as columns, `[panels, bytes]`."""
    halves, words = _apart(blocks.reshape(len(blocks), -1, format.block_bytes), format)
    panels, count = len(blocks) // 64, halves.shape[1]
    of_halves = halves.reshape(panels, 64, count, halves.shape[2]).swapaxes(1, 2)
    of_words = words.reshape(panels, -1, _STRIP, count, words.shape[2], 4)
    of_words = of_words.transpose(0, 1, 3, 4, 2, 5)
    return np.concatenate([part.reshape(panels, -1) for part in (of_halves, of_words)], axis=1)


def blocks_of(panels: Bytes, format: WeightFormat, row_bytes: int) -> Bytes:
    """The inverse of `panels_of`."""
    count, half = row_bytes // format.block_bytes, format.block_bytes % 4
    data = panels.reshape(-1, 64 * row_bytes)
    halves = data[:, : 64 * half * count].reshape(len(data), count, 64, half).swapaxes(1, 2)
    words = data[:, 64 * half * count :].reshape(
        len(data), -1, count, format.block_bytes // 4, _STRIP, 4
    )
    of_words = words.transpose(0, 1, 4, 2, 3, 5).reshape(-1, count, format.block_bytes - half)
    of_halves = halves.reshape(64 * len(data), count, half)
    at = _HALF_AT.get(format.name, 0)
    parts = (of_words[..., :at], of_halves, of_words[..., at:])
    return np.concatenate(parts, axis=2).reshape(-1, row_bytes)


def _apart(blocks: Bytes, format: WeightFormat) -> tuple[Bytes, Bytes]:
    """`[rows, blocks, 2 or 0]` of the two bytes, and `[rows, blocks, words, 4]`."""
    half, at = format.block_bytes % 4, _HALF_AT.get(format.name, 0)
    halves = blocks[..., at : at + half]
    words = np.concatenate((blocks[..., :at], blocks[..., at + half :]), axis=-1)
    return halves, words.reshape(*blocks.shape[:-1], -1, 4)
