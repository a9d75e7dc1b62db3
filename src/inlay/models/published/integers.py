"""Integers in words of 32 bits: AWQ, GPTQ and compressed-tensors; and int8 as it is.

A weight is `(code - zero) * scale`. Sources: the packing of AutoAWQ's `gemm` version, of AutoGPTQ
and GPTQModel (`gptq`, `gptq_v2`), and of compressed-tensors.
"""

from functools import partial

import numpy as np

from inlay.core.errors import ModelFileError
from inlay.core.quantization import integer_form
from inlay.models.float_arrays import BFLOAT16, Array, to_float32
from inlay.models.published.layout import Layout, Parts
from inlay.models.published.rows import Matrix, QuantizedRows, in_turn, nibbles
from inlay.models.weight_names import Expected

_WORD = 32
# AWQ has the even ones of eight neighbours in the low half of a word, then the odd ones.
_AWQ_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
_BITS = (2, 3, 4, 8)


def unpacked(words: Array, bits: int) -> Array:
    """The codes in words `[..., W]`, the first one lowest: uint8 `[..., 32 W / bits]`.

    Codes of 3 bits cross the ends of words; 32 of them are three words.
    """
    data = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return data
    if bits == 4:
        return nibbles(data)
    places = np.arange(8, dtype=np.uint8)
    single = (data[..., None] >> places & 1).reshape(*data.shape[:-1], -1, bits)
    codes: Array = (single << places[:bits]).sum(axis=-1, dtype=np.uint8)
    return codes


def grouped(
    codes_NK: Array,
    scales_NG: Array,
    zeros_NG: Array | None,
    bits: int,
    order_K: Array | None = None,
) -> Matrix:
    """Rows of integers as kernels have them, or as floats where they have no such.

    Args:
        codes_NK: from 0 on.
        zeros_NG: None: half of the codes are below zero.
        order_K: the group of each column; None: they follow one another.
    """
    columns, count = codes_NK.shape[1], scales_NG.shape[1]
    middle = 1 << (bits - 1)
    group = columns // count
    if order_K is not None and np.array_equal(order_K, np.arange(columns) // group):
        order_K = None
    form = integer_form(
        bits, -1 if count == 1 else group, symmetric=zeros_NG is None, in_order=order_K is None
    )
    # Groups of lines have no part.
    if form.again or (zeros_NG is not None and columns % 32):
        order = np.arange(columns) // group if order_K is None else order_K
        zeros = np.float32(middle) if zeros_NG is None else to_float32(zeros_NG)[:, order]
        floats = to_float32(codes_NK) - zeros
        floats *= to_float32(scales_NG)[:, order]
        return floats
    if zeros_NG is None:
        integers = (codes_NK.astype(np.int16) - middle).astype(np.int8)
        return QuantizedRows(form.weight_format, integers, scales_NG, group, columns)
    # In float64 minimum and product are exact, as the difference is in the definition.
    scales = scales_NG.astype(np.float64)
    lines = in_turn(scales, -zeros_NG.astype(np.float64) * scales)
    return QuantizedRows(form.weight_format, codes_NK.view(np.int8), lines, group, columns)


def _groups(parts: Parts, pattern: str, dim: int, columns: int) -> int:
    """Scales of a row in the files, or 1 where they do not divide it."""
    count = parts.size(pattern)[dim] if parts.has(pattern) and parts.size(pattern) else 1
    return count if count and columns % count == 0 else 1


def _bits_of(parts: Parts, pattern: str, dim: int, codes: int) -> int:
    """Bits of the codes in a tensor of words; 4 where there is no such tensor."""
    words = parts.size(pattern)[dim] if parts.has(pattern) else 0
    bits = words * _WORD // codes
    return bits if bits in _BITS else 4


def _awq_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    groups = _groups(parts, "{module}.scales", 0, columns)
    return (
        Expected(parts.named("{module}.qweight"), (columns, rows // 8)),
        Expected(parts.named("{module}.scales"), (groups, rows)),
        Expected(parts.named("{module}.qzeros"), (groups, rows // 8)),
    )


def _awq_unpacked(words: Array) -> Array:
    codes = unpacked(words, 4)
    return codes.reshape(len(codes), -1, 8)[..., _AWQ_PLACES].reshape(codes.shape)


def _awq_rows(parts: Parts, rows: slice) -> Matrix:
    words = slice(rows.start // 8, -(-rows.stop // 8))
    inside = slice(rows.start - 8 * words.start, rows.stop - 8 * words.start)
    codes = _awq_unpacked(parts.get("{module}.qweight")[:, words])[:, inside]
    scales = parts.get("{module}.scales")[:, rows]
    zeros = _zeros(_awq_unpacked(parts.get("{module}.qzeros")), 4)
    return grouped(
        np.ascontiguousarray(codes.T),
        np.ascontiguousarray(scales.T),
        None if zeros is None else zeros[:, rows].T,
        4,
    )


def _zeros(of_all: Array, bits: int) -> Array | None:
    """Zero points, or None where all of a matrix, not of some rows, are the middle."""
    return None if bool((of_all == 1 << (bits - 1)).all()) else of_all


def _gptq_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    groups = _groups(parts, "{module}.scales", 0, columns)
    bits = _bits_of(parts, "{module}.qweight", 0, columns)
    of_order = (parts.named("{module}.g_idx"), (columns,))
    return (
        Expected(parts.named("{module}.qweight"), (columns * bits // _WORD, rows)),
        Expected(parts.named("{module}.scales"), (groups, rows)),
        Expected(parts.named("{module}.qzeros"), (groups, rows * bits // _WORD)),
        *((Expected(*of_order),) if parts.has("{module}.g_idx") else ()),
    )


def _gptq_rows(parts: Parts, rows: slice, less: int) -> Matrix:
    scales = parts.get("{module}.scales")
    bits = _bits_of(parts, "{module}.qzeros", 1, scales.shape[1])
    words = parts.get("{module}.qweight")[:, rows].T
    zeros = _zeros(unpacked(parts.get("{module}.qzeros"), bits).astype(np.int16) + less, bits)
    return grouped(
        unpacked(words, bits),
        np.ascontiguousarray(scales[:, rows].T),
        None if zeros is None else zeros[:, rows].T,
        bits,
        _order(parts, "{module}.g_idx", len(scales)),
    )


def _order(parts: Parts, pattern: str, groups: int) -> Array | None:
    """The group of each column; None where the files say nothing of that."""
    if not parts.has(pattern):
        return None
    order = parts.get(pattern)
    if order.min() < 0 or order.max() >= groups:
        raise ModelFileError(
            f"{parts.named(pattern)} names groups from {int(order.min())} to {int(order.max())}, "
            f"and there are {groups}: the file is damaged"
        )
    return order


def _packed_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    bits = _bits_of(parts, "{name}_packed", 1, columns)
    groups = _groups(parts, "{name}_scale", 1, columns)
    zeros = (parts.named("{name}_zero_point"), (-(-rows * bits // _WORD), groups))
    order = (parts.named("{name}_g_idx"), (columns,))
    return (
        Expected(parts.named("{name}_packed"), (rows, -(-columns * bits // _WORD))),
        Expected(parts.named("{name}_scale"), (rows, groups)),
        Expected(parts.named("{name}_shape"), (2,)),
        *((Expected(*zeros),) if parts.has("{name}_zero_point") else ()),
        *((Expected(*order),) if parts.has("{name}_g_idx") else ()),
    )


def _packed_rows(parts: Parts, rows: slice) -> Matrix:
    columns = int(parts.get("{name}_shape")[1])
    bits = _bits_of(parts, "{name}_packed", 1, columns)
    codes = unpacked(parts.get("{name}_packed", rows), bits)[:, :columns]
    scales, zeros = parts.get("{name}_scale", rows), None
    if parts.has("{name}_zero_point"):
        # Packed down the rows.
        zeros = _zeros(unpacked(parts.get("{name}_zero_point").T, bits).T, bits)
    return grouped(
        np.ascontiguousarray(codes),
        scales,
        None if zeros is None else zeros[rows],
        bits,
        _order(parts, "{name}_g_idx", scales.shape[1]),
    )


def _is_written(parts: Parts) -> bool:
    """Codes of 4 bits, half of them below zero, in groups that follow one another."""
    if any(map(parts.has, ("{name}_zero_point", "{name}_g_idx"))) or not parts.has("{name}_shape"):
        return False
    columns = int(parts.get("{name}_shape")[1])
    return _bits_of(parts, "{name}_packed", 1, columns) == 4


def _int4_quantized(parts: Parts, rows_NK: Array) -> tuple[Array, Array]:
    """A scale is a 7.5th of a group's largest weight, as makers' tools have it."""
    groups = rows_NK.reshape(len(rows_NK), parts.size("{name}_scale")[1], -1)
    scales = (np.abs(groups).max(axis=-1) / np.float32(7.5)).astype(BFLOAT16)
    steps = to_float32(scales)
    steps = np.where(steps > 0, steps, np.float32(1))
    codes = np.rint(groups / steps[..., None]).clip(-8, 7).astype(np.int32) + 8
    places = 4 * np.arange(8, dtype=np.uint32)
    eights = codes.view(np.uint32).reshape(len(rows_NK), -1, 8) << places
    return eights.sum(axis=-1, dtype=np.uint32).view(np.int32), scales


def _int8_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    found = parts.size("{name}_scale")
    groups = _groups(parts, "{name}_scale", 1, columns) if len(found) == 2 else 1
    allowed = ((rows, groups), (rows,), (1,), (), (1, 1))
    scales = found if found in allowed else allowed[0]
    return matrix, Expected(parts.named("{name}_scale"), scales)


def _int8_rows(parts: Parts, rows: slice) -> Matrix:
    scales = parts.get("{name}_scale")
    count, columns = parts.size("{name}")
    by_row = scales.reshape(-1, scales.shape[-1] if scales.ndim == 2 else 1)
    by_row = np.broadcast_to(by_row, (count, by_row.shape[1]))
    codes = (parts.get("{name}", rows).astype(np.int16) + 128).astype(np.uint8)
    return grouped(codes, by_row[rows], None, 8)


AWQ = Layout(
    codes="{module}.qweight",
    scales="{module}.scales",
    dtypes=(np.dtype(np.int32),),
    tensors=_awq_tensors,
    read=_awq_rows,
    count_rows=lambda parts: parts.size("{module}.scales")[1],
)
GPTQ, GPTQ_V2 = (
    Layout(
        codes="{module}.qweight",
        scales="{module}.scales",
        dtypes=(np.dtype(np.int32),),
        tensors=_gptq_tensors,
        # The first version of the format has each zero point less 1.
        read=partial(_gptq_rows, less=less),
        count_rows=lambda parts: parts.size("{module}.scales")[1],
    )
    for less in (1, 0)
)
PACKED_4_BITS = Layout(
    codes="{name}_packed",
    scales="{name}_scale",
    dtypes=(np.dtype(np.int32),),
    tensors=_packed_tensors,
    read=_packed_rows,
    fits=_is_written,
    quantize=_int4_quantized,
)
PACKED = Layout(
    codes="{name}_packed",
    scales="{name}_scale",
    dtypes=(np.dtype(np.int32),),
    tensors=_packed_tensors,
    read=_packed_rows,
)
INT8 = Layout(
    codes="{name}",
    scales="{name}_scale",
    dtypes=(np.dtype(np.int8),),
    tensors=_int8_tensors,
    read=_int8_rows,
    aside=("{module}.input_scale", "{module}.input_zero_point", "{module}.output_scale"),
)
