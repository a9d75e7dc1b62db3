"""Random blocks of GGUF types: any codes, with scales that are finite."""

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from inlay.core.weight_format import format_named

Bytes = npt.NDArray[np.uint8]

# Where a block of a type has numbers in float16; IQ1_M has the parts of one elsewhere.
_FLOATS_AT = {
    "q2_k": (80, 82), "q3_k": (108,), "q6_k": (208,), "tq1_0": (52,), "tq2_0": (64,),
    "q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "nvfp4": (), "iq1_m": (),
}  # fmt: skip
# Of a type's second number, for each unit of the first.
_MINIMUMS = {"q4_1": -7.5, "q5_1": -15.5, "q4_k": 7.5, "q5_k": 15.5, "q2_k": 1.5}
_TERNARY_BYTES = 52  # of TQ1_0, each five digits to the base of three


def random_blocks(rng: np.random.Generator, name: str, rows: int, columns: int) -> Bytes:
    """Blocks of a format, `[rows, bytes of a row]`, with weights of about 2^-20 to 2^7."""
    format = format_named(name)
    shape = (rows, columns // format.block)
    blocks = rng.integers(0, 256, (*shape, format.block_bytes), dtype=np.uint8)
    for at in _FLOATS_AT.get(name, (0,)):
        blocks[..., at : at + 2] = _scales(rng, shape).view(np.uint8)
    if name == "iq1_m":
        bits = _scales(rng, shape).view(np.uint16)[..., 0]
        parts = blocks[..., 48:].copy().view(np.uint16)
        for i in range(4):
            parts[..., i] = parts[..., i] & 0xFFF | (bits >> 4 * i & 15) << 12
        blocks[..., 48:] = parts.view(np.uint8)
    if name == "tq1_0":
        digits = rng.integers(0, 3**5, (*shape, _TERNARY_BYTES))
        blocks[..., :_TERNARY_BYTES] = (digits * 256 + 242) // 243
    return blocks.reshape(rows, -1)


def blocks_like(rng: np.random.Generator, name: str, values: npt.NDArray[np.float32]) -> Bytes:
    """Random blocks of a format for a matrix, `[..., bytes of a row]`, whose weights lie around 0
    and are about as large as those given. What the matrix holds is not looked at.
    """
    rows = values.reshape(-1, values.shape[-1])
    blocks = random_blocks(rng, name, *rows.shape)
    _set_scales(blocks, name, 1.0)
    wanted = np.std(rows) / np.std(meant(blocks, name))
    _set_scales(blocks, name, float(wanted))
    return blocks.reshape(*values.shape[:-1], -1)


def _set_scales(blocks: Bytes, name: str, scale: float) -> None:
    """One for all, and minimums that bring the mean to about 0."""
    of_blocks = blocks.reshape(-1, format_named(name).block_bytes)
    numbers = (scale, scale * _MINIMUMS.get(name, 0.0))
    for at, number in zip(_FLOATS_AT.get(name, (0,)), numbers, strict=False):
        of_blocks[:, at : at + 2] = np.array([number], np.float16).view(np.uint8)
    if name == "nvfp4":  # a power of two
        of_blocks[:, :4] = 8 * round(np.clip(np.log2(scale) + 7, 1, 14))
    if name == "iq1_m":
        bits = int(np.array([scale], np.float16).view(np.uint16)[0])
        for i, at in enumerate(range(49, 56, 2)):
            of_blocks[:, at] = of_blocks[:, at] & 15 | (bits >> 4 * i & 15) << 4


def with_scale(blocks: Bytes, name: str, row: int, value: float) -> Bytes:
    """The same where the first number of a row's last block is another."""
    changed = blocks.copy()
    last = changed[row, -format_named(name).block_bytes :]
    at = _FLOATS_AT.get(name, (0,))[0]
    last[at : at + 2] = np.array([value], np.float16).view(np.uint8)
    return changed


def meant(blocks: Bytes, name: str) -> npt.NDArray[np.float32]:
    """The weights that the format's own library reads."""
    values: Any = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name.upper()])
    return np.asarray(values, np.float32).reshape(len(blocks), -1)


def _scales(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float16]:
    """Some of them subnormal, `[*shape, 1]`."""
    sizes = np.exp2(rng.integers(-20, 3, shape))
    return (rng.standard_normal(shape) * sizes).astype(np.float16)[..., None]
