"""Rows of quantised matrices as kernels take them, and the floats that they stand for.

Knows no files. Nothing here makes a float copy of more than the rows that are asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from inlay.core.weight_format import WeightFormat, format_named

# Of zero points, which the kernels hold below 128.
_MOST_ZERO = 120.0
# e2m1 by its code: a sign, two bits of exponent, one of mantissa. Source: OCP Microscaling
# Formats (MX) specification 1.0.
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True)
class QuantizedRows:
    """Rows of a matrix, or of some matrices of one size: `[..., N, K]`.

    Attributes:
        weight_format: of the kernels, which holds the same, or nearly.
        codes: what is stored of the weights, `[..., N, *]`; of integers one to a byte.
        scales: `[..., N, K / group]`; where the kernels have zero points, twice as many: each is
            followed by its minimum, and weights are `minimum + scale * code`. In float64 where
            float32 does not hold them, or their products with codes, exactly.
        group: weights of a row that share a scale; of kernels' groups a multiple, or a part.
        columns: K.
    """

    weight_format: str
    codes: Tensor
    scales: Tensor
    group: int
    columns: int

    @property
    def shape(self) -> tuple[int, ...]:
        """`[..., N, K]`."""
        return (*self.scales.shape[:-1], self.columns)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Any) -> "QuantizedRows":
        """Some rows, or one of the matrices."""
        return replace(self, codes=self.codes[index], scales=self.scales[index])

    def for_kernels(self) -> tuple[Tensor, Tensor]:
        """As `set_rows_quantized` of the kernels takes them: integers, or bytes as they are, and
        scales in float32, or powers of two in a byte, for each of the kernels' groups.
        """
        held = format_named(self.weight_format)
        rows = _in_groups_of(self, held)
        if held.has_zeros:
            codes, scales = _with_zero_points(rows)
        elif held.is_integer:
            codes, scales = rows.codes, rows.scales.float()
        else:
            codes = rows.codes.contiguous().view(torch.uint8)
            scales = rows.scales if self.weight_format == "mxfp4" else rows.scales.float()
        return codes.contiguous(), scales.contiguous()

    def float(self) -> Tensor:
        """The weights in float32. Cost: four bytes for each."""
        return _MEANING[self.weight_format.partition(":")[0]](self)


Matrix = Tensor | QuantizedRows


def floats_of(matrix: Matrix) -> Tensor:
    """The matrix as its file has it, or what its codes mean."""
    return matrix.float() if isinstance(matrix, QuantizedRows) else matrix


def columns_of(matrix: Matrix, part: slice) -> Matrix:
    """Some columns, from one group's first up to another's."""
    if isinstance(matrix, Tensor):
        return matrix[..., part]
    columns, group = matrix.columns, matrix.group

    def cut(stored: Tensor, of: int, start: int, stop: int) -> Tensor:
        each = stored.shape[-1]
        return stored[..., start * each // of : stop * each // of]

    codes = cut(matrix.codes, columns, part.start, part.stop)
    count = part.stop - part.start
    if group >= columns:
        return replace(matrix, codes=codes, group=count, columns=count)
    assert part.start % group == 0 and (part.stop % group == 0 or part.stop == columns)
    groups = -(-columns // group)
    return replace(
        matrix,
        codes=codes,
        scales=cut(matrix.scales, groups, part.start // group, -(-part.stop // group)),
        columns=count,
    )


def nibbles(packed: Tensor) -> Tensor:
    """The two codes of each byte, the low one first."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def e2m1(packed: Tensor) -> Tensor:
    """The two floats of each byte, the low one first, in float32."""
    return _E2M1[nibbles(packed).int()]


def _in_groups_of(rows: QuantizedRows, held: WeightFormat) -> QuantizedRows:
    """The same with a scale for each group of a format."""
    group = held.group if held.group > 0 else rows.columns
    if rows.group == group or rows.group >= rows.columns and group >= rows.columns:
        return rows
    if rows.group < group:
        return _larger_groups(rows, group)
    starts = torch.arange(0, rows.columns, group) // min(rows.group, rows.columns)
    pairs = rows.scales.reshape(*rows.scales.shape[:-1], -1, held.scale_columns)
    return replace(rows, scales=pairs[..., starts, :].flatten(-2), group=group)


def _larger_groups(rows: QuantizedRows, group: int) -> QuantizedRows:
    """Of small floats with powers of two: the largest of a larger group serves all of it.

    The others' codes become smaller by as much, which is exact but for those that fall below the
    least normal one: they change by at most 2^-10 of the scale.
    """
    assert rows.codes.dtype == torch.float8_e4m3fn
    each = group // rows.group
    scales = torch.nn.functional.pad(rows.scales, (0, -rows.scales.shape[-1] % each))
    largest = scales.view(*scales.shape[:-1], -1, each).amax(-1)
    wide = largest.repeat_interleave(group, -1)[..., : rows.columns]
    # Of nothing but zeros any scale will do.
    values = rows.float() / torch.where(wide > 0, wide, 1.0)
    return replace(rows, codes=values.to(rows.codes.dtype), scales=largest, group=group)


def _scaled(rows: QuantizedRows) -> Tensor:
    dtype = torch.promote_types(rows.scales.dtype, torch.float32)
    wide = rows.scales.to(dtype).repeat_interleave(rows.group, dim=-1)
    return (rows.codes.to(dtype) * wide[..., : rows.columns]).float()


def _lines(rows: QuantizedRows) -> Tensor:
    scales, minimums = rows.scales[..., 0::2], rows.scales[..., 1::2]
    codes = rows.codes.to(scales.dtype).reshape(*scales.shape, -1)
    return (minimums[..., None] + scales[..., None] * codes).flatten(-2).float()


def _with_zero_points(rows: QuantizedRows) -> tuple[Tensor, Tensor]:
    """Codes and scales of `(code - zero) * scale`.

    Zero points have an end: where a group is so far beside 0, its codes take larger steps, and its
    weights change by at most half a `_MOST_ZERO`-th of it.
    """
    scales, minimums = rows.scales[..., 0::2], rows.scales[..., 1::2]
    codes = rows.codes
    least = minimums.abs() / _MOST_ZERO
    far = scales.abs() < least
    if far.any():
        shrink = torch.where(far, scales.abs() / torch.where(far, least, 1.0), 1.0)
        grouped = codes.reshape(*scales.shape, rows.group) * shrink[..., None]
        codes = grouped.round().to(torch.int8).flatten(-2)
        scales = torch.where(far, torch.copysign(least, scales), scales)
    zeros = torch.where(scales == 0, 0.0, -minimums / scales)
    return codes, torch.stack((scales, zeros), dim=-1).flatten(-2).float()


def _mxfp4_floats(rows: QuantizedRows) -> Tensor:
    values = e2m1(rows.codes).view(*rows.scales.shape, rows.group)
    return torch.ldexp(values, rows.scales.int()[..., None] - 127).flatten(-2)


_MEANING: dict[str, Callable[[QuantizedRows], Tensor]] = {
    "fp8": _scaled,
    "int8": _scaled,
    "int4": _scaled,
    "uint4": _lines,
    "mxfp4": _mxfp4_floats,
}
