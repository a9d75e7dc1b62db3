"""Floats of 8 and 4 bits: fp8, MXFP8, mxfp4 and NVFP4, as several tools write them.

Sources: the OCP Microscaling Formats (MX) specification 1.0; DeepSeek's, compressed-tensors' and
ModelOpt's files.
"""

from functools import partial

import numpy as np

from inlay.models.float_arrays import FLOAT8, Array, to_float32
from inlay.models.published.layout import Layout, Parts
from inlay.models.published.rows import Matrix, QuantizedRows, e2m1
from inlay.models.weight_names import Expected

_FP8 = "fp8:g128"
_BLOCK = 128
_MX_GROUP, _NV_GROUP = 32, 16
_MOST_E4M3 = 448.0
# What activations are multiplied with before they are quantised, where that is fixed.
_OF_ACTIVATIONS = (
    "{module}.activation_scale",
    "{module}.input_global_scale",
    "{module}.input_scale",
    "{module}.input_zero_point",
    "{module}.output_scale",
)


def _blocks(size: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-length // _BLOCK) for length in size)


def _has_blocks(parts: Parts, scales: str) -> bool:
    return parts.size(scales) == _blocks(parts.size("{name}"))


def _block_tensors(parts: Parts, matrix: Expected, scales: str) -> tuple[Expected, ...]:
    return matrix, Expected(parts.named(scales), _blocks(matrix.shape))


def _block_rows(parts: Parts, rows: slice, scales: str) -> Matrix:
    first = rows.start // _BLOCK
    by_block = parts.get(scales, slice(first, -(-rows.stop // _BLOCK)))
    by_row = np.repeat(by_block, _BLOCK, axis=0)[rows.start - first * _BLOCK :]
    codes = parts.get("{name}", rows)
    return QuantizedRows(_FP8, codes, by_row[: len(codes)], _BLOCK, codes.shape[1])


def _block_quantized(parts: Parts, rows_NK: Array) -> tuple[Array, Array]:
    rows, columns = rows_NK.shape
    padded = np.pad(rows_NK, ((0, -rows % _BLOCK), (0, -columns % _BLOCK)))
    blocks = padded.reshape(len(padded) // _BLOCK, _BLOCK, -1, _BLOCK)
    largest = np.abs(blocks).max(axis=(1, 3))
    scales = np.where(largest > 0, largest / np.float32(_MOST_E4M3), np.float32(1))
    codes = (blocks / scales[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
    return codes.astype(FLOAT8), scales


def _is_one(size: tuple[int, ...]) -> bool:
    return size in ((), (1,), (1, 1))


def _row_tensors(parts: Parts, matrix: Expected, scales: str) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    found = parts.size(scales)
    groups = found[-1] if len(found) == 2 and columns % (found[-1] * _BLOCK) == 0 else 1
    fits = _is_one(found) or found == (rows,)
    return matrix, Expected(parts.named(scales), found if fits else (rows, groups))


def _row_rows(parts: Parts, rows: slice, scales: str) -> Matrix:
    codes, found = parts.get("{name}", rows), parts.get(scales)
    by_row = found.reshape(1, 1) if found.size == 1 else found.reshape(len(found), -1)[rows]
    by_row = np.broadcast_to(by_row, (len(codes), by_row.shape[1]))
    columns = codes.shape[1]
    return QuantizedRows(_FP8, codes, by_row, columns // by_row.shape[1], columns)


def _mxfp8_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    return matrix, Expected(parts.named("{name}_scale"), (rows, columns // _MX_GROUP))


def _is_mxfp8(parts: Parts) -> bool:
    return parts.dtype("{name}_scale") == np.uint8


def _mxfp8_rows(parts: Parts, rows: slice) -> Matrix:
    codes, exponents = parts.get("{name}", rows), parts.get("{name}_scale", rows)
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return QuantizedRows(_FP8, codes, scales, _MX_GROUP, codes.shape[1])


def _stacked_mxfp4_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    experts, columns, rows = matrix.shape  # files with floats have columns first, these do not
    scales = (experts, rows, columns // _MX_GROUP)
    return (
        Expected(parts.named("{name}_blocks"), (*scales, _MX_GROUP // 2)),
        Expected(parts.named("{name}_scales"), scales),
    )


def _stacked_mxfp4_rows(parts: Parts, rows: slice) -> Matrix:
    codes, scales = parts.get("{name}_blocks"), parts.get("{name}_scales")
    columns = _MX_GROUP * scales.shape[-1]
    return QuantizedRows("mxfp4", codes.reshape(*codes.shape[:-2], -1), scales, _MX_GROUP, columns)[
        rows
    ]


def _mxfp4_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    return (
        Expected(parts.named("{name}_packed"), (rows, columns // 2)),
        Expected(parts.named("{name}_scale"), (rows, columns // _MX_GROUP)),
    )


def _mxfp4_rows(parts: Parts, rows: slice) -> Matrix:
    codes, scales = parts.get("{name}_packed", rows), parts.get("{name}_scale", rows)
    return QuantizedRows("mxfp4", codes, scales, _MX_GROUP, 2 * codes.shape[1])


def _nvfp4_tensors(parts: Parts, matrix: Expected, codes: str, whole: str) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    found = parts.size(whole) if parts.has(whole) else ()
    return (
        Expected(parts.named(codes), (rows, columns // 2)),
        Expected(parts.named("{name}_scale"), (rows, columns // _NV_GROUP)),
        Expected(parts.named(whole), found if _is_one(found) else ()),
    )


def _nvfp4_rows(parts: Parts, rows: slice, codes: str, whole: str) -> Matrix:
    """As floats: kernels have no scales of groups of 16."""
    values = e2m1(parts.get(codes, rows))
    scales = to_float32(parts.get("{name}_scale", rows))
    of_all = to_float32(parts.get(whole)).reshape(())
    # compressed-tensors has the inverse of what ModelOpt has.
    scales = scales / of_all if whole == _INVERSE else scales * of_all
    values *= np.repeat(scales, _NV_GROUP, axis=-1)
    return values


_INVERSE = "{name}_global_scale"

FP8_BLOCKS, FP8_BLOCKS_INVERSE = (
    Layout(
        codes="{name}",
        scales=scales,
        dtypes=(FLOAT8,),
        tensors=partial(_block_tensors, scales=scales),
        read=partial(_block_rows, scales=scales),
        fits=partial(_has_blocks, scales=scales),
        aside=_OF_ACTIVATIONS,
        quantize=_block_quantized,
        rows_together=_BLOCK,
    )
    for scales in ("{name}_scale", "{name}_scale_inv")
)
FP8_ROWS, FP8_ROWS_INVERSE = (
    Layout(
        codes="{name}",
        scales=scales,
        dtypes=(FLOAT8,),
        tensors=partial(_row_tensors, scales=scales),
        read=partial(_row_rows, scales=scales),
        aside=_OF_ACTIVATIONS,
    )
    for scales in ("{name}_scale", "{name}_scale_inv")
)
MXFP8 = Layout(
    codes="{name}",
    scales="{name}_scale",
    dtypes=(FLOAT8,),
    tensors=_mxfp8_tensors,
    read=_mxfp8_rows,
    fits=_is_mxfp8,
    aside=_OF_ACTIVATIONS,
)
STACKED_MXFP4 = Layout(
    codes="{name}_blocks",
    scales="{name}_scales",
    dtypes=(np.dtype(np.uint8),),
    tensors=_stacked_mxfp4_tensors,
    read=_stacked_mxfp4_rows,
)
NVFP4, NVFP4_OF_MODELOPT = (
    Layout(
        codes=codes,
        scales="{name}_scale",
        dtypes=(np.dtype(np.uint8),),
        tensors=partial(_nvfp4_tensors, codes=codes, whole=whole),
        read=partial(_nvfp4_rows, codes=codes, whole=whole),
        fits=lambda parts: parts.dtype("{name}_scale") == FLOAT8,
        aside=_OF_ACTIVATIONS,
    )
    for codes, whole in (("{name}_packed", _INVERSE), ("{name}", "{name}_scale_2"))
)
MXFP4 = Layout(
    codes="{name}_packed",
    scales="{name}_scale",
    dtypes=(np.dtype(np.uint8),),
    tensors=_mxfp4_tensors,
    read=_mxfp4_rows,
    aside=_OF_ACTIVATIONS,
)
