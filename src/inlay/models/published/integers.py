"""Integers in words of 32 bits: AWQ, GPTQ and compressed-tensors; and int8 as it is.

A weight is `(code - zero) * scale`. Sources: the packing of AutoAWQ's `gemm` version, of AutoGPTQ
and GPTQModel (`gptq`, `gptq_v2`), and of compressed-tensors.
"""

from functools import partial

import torch
from torch import Tensor

from inlay.core.errors import ModelFileError
from inlay.core.quantization import integer_form
from inlay.models.published.layout import Layout, Parts
from inlay.models.published.rows import Matrix, QuantizedRows, nibbles
from inlay.models.weight_names import Expected

_WORD = 32
# AWQ has the even ones of eight neighbours in the low half of a word, then the odd ones.
_AWQ_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
_BITS = (2, 3, 4, 8)


def unpacked(words: Tensor, bits: int) -> Tensor:
    """The codes in words `[..., W]`, the first one lowest: uint8 `[..., 32 W / bits]`.

    Codes of 3 bits cross the ends of words; 32 of them are three words.
    """
    data = words.contiguous().view(torch.uint8)
    if bits == 8:
        return data
    if bits == 4:
        return nibbles(data)
    places = torch.arange(8, dtype=torch.uint8)
    single = (data[..., None] >> places & 1).view(*data.shape[:-1], -1, bits)
    codes: Tensor = (single << places[:bits]).sum(-1, dtype=torch.uint8)
    return codes


def grouped(
    codes_NK: Tensor,
    scales_NG: Tensor,
    zeros_NG: Tensor | None,
    bits: int,
    order_K: Tensor | None = None,
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
    if order_K is not None and torch.equal(order_K.long(), torch.arange(columns) // group):
        order_K = None
    form = integer_form(
        bits, -1 if count == 1 else group, symmetric=zeros_NG is None, in_order=order_K is None
    )
    # Groups of lines have no part.
    if form.again or (zeros_NG is not None and columns % 32):
        order = torch.arange(columns) // group if order_K is None else order_K.long()
        zeros = middle if zeros_NG is None else zeros_NG.float()[:, order]
        return (codes_NK.float() - zeros) * scales_NG.float()[:, order]
    if zeros_NG is None:
        integers = (codes_NK.to(torch.int16) - middle).to(torch.int8)
        return QuantizedRows(form.weight_format, integers, scales_NG, group, columns)
    # In float64 minimum and product are exact, as the difference is in the definition.
    scales = scales_NG.double()
    lines = torch.stack((scales, -zeros_NG.double() * scales), dim=-1).flatten(-2)
    return QuantizedRows(form.weight_format, codes_NK.view(torch.int8), lines, group, columns)


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


def _awq_unpacked(words: Tensor) -> Tensor:
    codes = unpacked(words, 4)
    return codes.view(len(codes), -1, 8)[..., _AWQ_PLACES].flatten(-2)


def _awq_rows(parts: Parts, rows: slice) -> Matrix:
    words = slice(rows.start // 8, -(-rows.stop // 8))
    inside = slice(rows.start - 8 * words.start, rows.stop - 8 * words.start)
    codes = _awq_unpacked(parts.get("{module}.qweight")[:, words])[:, inside].t().contiguous()
    scales = parts.get("{module}.scales")[:, rows].t().contiguous()
    zeros = _zeros(_awq_unpacked(parts.get("{module}.qzeros")), 4)
    return grouped(codes, scales, None if zeros is None else zeros[:, rows].t(), 4)


def _zeros(of_all: Tensor, bits: int) -> Tensor | None:
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
    words = parts.get("{module}.qweight")[:, rows].t()
    zeros = _zeros(unpacked(parts.get("{module}.qzeros"), bits).to(torch.int16) + less, bits)
    return grouped(
        unpacked(words, bits),
        scales[:, rows].t().contiguous(),
        None if zeros is None else zeros[:, rows].t(),
        bits,
        _order(parts, "{module}.g_idx", len(scales)),
    )


def _order(parts: Parts, pattern: str, groups: int) -> Tensor | None:
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
        zeros = _zeros(unpacked(parts.get("{name}_zero_point").t(), bits).t(), bits)
    return grouped(
        codes.contiguous(),
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


def _int4_quantized(parts: Parts, rows_NK: Tensor) -> tuple[Tensor, Tensor]:
    """A scale is a 7.5th of a group's largest weight, as makers' tools have it."""
    groups = rows_NK.reshape(len(rows_NK), parts.size("{name}_scale")[1], -1)
    scales = (groups.abs().amax(-1) / 7.5).bfloat16()
    steps = torch.where(scales > 0, scales, 1.0).float()
    codes = (groups / steps[..., None]).round().clamp(-8, 7).to(torch.int32).flatten(1) + 8
    places = 4 * torch.arange(8, dtype=torch.int32)
    words = (codes.view(len(codes), -1, 8) << places).sum(-1, dtype=torch.int32)
    return words, scales


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
    by_row = scales.reshape(-1, scales.shape[-1] if scales.dim() == 2 else 1).expand(count, -1)
    codes = (parts.get("{name}", rows).to(torch.int16) + 128).to(torch.uint8)
    return grouped(codes, by_row[rows], None, 8)


AWQ = Layout(
    codes="{module}.qweight",
    scales="{module}.scales",
    dtypes=(torch.int32,),
    tensors=_awq_tensors,
    read=_awq_rows,
    count_rows=lambda parts: parts.size("{module}.scales")[1],
)
GPTQ, GPTQ_V2 = (
    Layout(
        codes="{module}.qweight",
        scales="{module}.scales",
        dtypes=(torch.int32,),
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
    dtypes=(torch.int32,),
    tensors=_packed_tensors,
    read=_packed_rows,
    fits=_is_written,
    quantize=_int4_quantized,
)
PACKED = Layout(
    codes="{name}_packed",
    scales="{name}_scale",
    dtypes=(torch.int32,),
    tensors=_packed_tensors,
    read=_packed_rows,
)
INT8 = Layout(
    codes="{name}",
    scales="{name}_scale",
    dtypes=(torch.int8,),
    tensors=_int8_tensors,
    read=_int8_rows,
    aside=("{module}.input_scale", "{module}.input_zero_point", "{module}.output_scale"),
)
