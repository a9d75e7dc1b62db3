"""Rows of quantised matrices as kernels take them, and the floats that they stand for.

Knows no files. Nothing here makes a float copy of more than the rows that are asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inlay.core.weight_format import BLOCK_FORMATS, WeightFormat, format_named
from inlay.models.float_arrays import BFLOAT16, FLOAT8, Array, bits_of, to_float32

# Of zero points, which the kernels hold below 128.
_MOST_ZERO = 120.0
# e2m1 by its code: a sign, two bits of exponent, one of mantissa. Source: OCP Microscaling
# Formats (MX) specification 1.0.
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


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
    codes: Array
    scales: Array
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

    # Damaged files hold infinities and NaN: kernels refuse those, and warnings would come before.
    @np.errstate(invalid="ignore", over="ignore")
    def for_kernels(self) -> tuple[Array, Array]:
        """As `set_rows_quantized` of the kernels takes them: integers, or bytes as they are, and
        scales in float32, or powers of two in a byte, for each of the kernels' groups.
        """
        held = format_named(self.weight_format)
        rows = _in_groups_of(self, held)
        if held.has_zeros:
            codes, scales = _with_zero_points(rows)
        else:
            codes, scales = bits_of(rows.codes), rows.scales
            if self.weight_format != "mxfp4":
                scales = to_float32(scales)
        return np.ascontiguousarray(codes), np.ascontiguousarray(scales)

    @np.errstate(invalid="ignore", over="ignore")
    def float(self) -> Array:
        """The weights in float32. Cost: four bytes for each."""
        return _MEANING[self.weight_format.partition(":")[0]](self)


@dataclass(frozen=True)
class BlockRows:
    """Rows of a matrix in a GGUF type whose blocks a CPU's kernels take as they are.

    Attributes:
        weight_format: of the kernels, one of `BLOCK_FORMATS`.
        blocks: the file's bytes, `[..., N, bytes of a row]`.
        columns: K.
        apart: what the blocks mean, for who does not take them: codes of another format, or floats.
    """

    weight_format: str
    blocks: Array
    columns: int
    apart: "Callable[[Array], Array | QuantizedRows]"

    @property
    def shape(self) -> tuple[int, ...]:
        """`[..., N, K]`."""
        return (*self.blocks.shape[:-1], self.columns)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: Any) -> "BlockRows":
        """Some rows, or one of the matrices."""
        return replace(self, blocks=self.blocks[index])

    def taken_apart(self) -> "Array | QuantizedRows":
        """The same without blocks."""
        return self.apart(self.blocks)

    def float(self) -> Array:
        """The weights in float32. Cost: four bytes for each."""
        return floats_of(self.taken_apart())


Matrix = Array | QuantizedRows | BlockRows


def floats_of(matrix: Matrix) -> Array:
    """The matrix as its file has it, or what its codes mean."""
    return matrix.float() if isinstance(matrix, QuantizedRows | BlockRows) else matrix


def held_format(matrix: Matrix, asked: str) -> str:
    """The format of the kernels in which a matrix is held where `asked` is the format of its part
    of a model. In one with blocks each matrix keeps what its own file has.
    """
    if asked not in BLOCK_FORMATS:
        return asked
    if isinstance(matrix, QuantizedRows | BlockRows):
        return matrix.weight_format
    if matrix.dtype == np.float16:
        return "float16"
    return "bfloat16" if matrix.dtype == BFLOAT16 else "float32"


def columns_of(matrix: Matrix, part: slice) -> Matrix:
    """Some columns, from one group's first up to another's."""
    if not isinstance(matrix, QuantizedRows):
        assert not isinstance(matrix, BlockRows), "columns are no blocks"
        return matrix[..., part]
    columns, group = matrix.columns, matrix.group

    def cut(stored: Array, of: int, start: int, stop: int) -> Array:
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


def nibbles(packed: Array) -> Array:
    """The two codes of each byte, the low one first."""
    return in_turn(packed & 15, packed >> 4)


def in_turn(*parts: Array) -> Array:
    """Elements of the last dimension of arrays of one shape, one of each array in turn."""
    return np.stack(parts, axis=-1).reshape(*parts[0].shape[:-1], -1)


def e2m1(packed: Array) -> Array:
    """The two floats of each byte, the low one first, in float32."""
    return _E2M1[nibbles(packed)]


def _in_groups_of(rows: QuantizedRows, held: WeightFormat) -> QuantizedRows:
    """The same with a scale for each group of a format."""
    group = held.group if held.group > 0 else rows.columns
    if rows.group == group or rows.group >= rows.columns and group >= rows.columns:
        return rows
    if rows.group < group:
        return _larger_groups(rows, group)
    starts = np.arange(0, rows.columns, group) // min(rows.group, rows.columns)
    above = rows.scales.shape[:-1]
    pairs = rows.scales.reshape(*above, -1, held.scale_columns)
    return replace(rows, scales=pairs[..., starts, :].reshape(*above, -1), group=group)


def _larger_groups(rows: QuantizedRows, group: int) -> QuantizedRows:
    """Of small floats with powers of two: the largest of a larger group serves all of it.

    The others' codes become smaller by as much, which is exact but for those that fall below the
    least normal one: they change by at most 2^-10 of the scale.
    """
    assert rows.codes.dtype == FLOAT8
    each, above = group // rows.group, rows.scales.shape[:-1]
    more = (0, -rows.scales.shape[-1] % each)
    scales = np.pad(rows.scales, [(0, 0)] * len(above) + [more])
    largest = scales.reshape(*above, -1, each).max(axis=-1)
    wide = np.repeat(largest, group, axis=-1)[..., : rows.columns]
    # Of nothing but zeros any scale will do.
    values = rows.float() / np.where(wide > 0, wide, np.float32(1))
    return replace(rows, codes=values.astype(FLOAT8), scales=largest, group=group)


def _scaled(rows: QuantizedRows) -> Array:
    dtype = np.float64 if rows.scales.dtype == np.float64 else np.float32
    wide = np.repeat(rows.scales.astype(dtype), rows.group, axis=-1)
    return to_float32(rows.codes.astype(dtype) * wide[..., : rows.columns])


def _lines(rows: QuantizedRows) -> Array:
    scales, minimums = rows.scales[..., 0::2], rows.scales[..., 1::2]
    codes = rows.codes.astype(scales.dtype).reshape(*scales.shape, -1)
    values = minimums[..., None] + scales[..., None] * codes
    return to_float32(values.reshape(*rows.codes.shape))


def _with_zero_points(rows: QuantizedRows) -> tuple[Array, Array]:
    """Codes and scales of `(code - zero) * scale`.

    Zero points have an end: where a group is so far beside 0, its codes take larger steps, and its
    weights change by at most half a `_MOST_ZERO`-th of it.
    """
    scales, minimums = rows.scales[..., 0::2], rows.scales[..., 1::2]
    one = scales.dtype.type(1)
    codes = rows.codes
    least = np.abs(minimums) / scales.dtype.type(_MOST_ZERO)
    far = np.abs(scales) < least
    if far.any():
        shrink = np.where(far, np.abs(scales) / np.where(far, least, one), one)
        grouped = codes.reshape(*scales.shape, rows.group) * shrink[..., None]
        codes = np.rint(grouped).astype(np.int8).reshape(codes.shape)
        scales = np.where(far, np.copysign(least, scales), scales)
    nothing = scales == 0
    zeros = np.where(nothing, 0 * one, -minimums / np.where(nothing, one, scales))
    return codes, to_float32(in_turn(scales, zeros))


def _mxfp4_floats(rows: QuantizedRows) -> Array:
    values = e2m1(rows.codes).reshape(*rows.scales.shape, rows.group)
    exponents = rows.scales.astype(np.int32)[..., None] - 127
    floats: Array = np.ldexp(values, exponents)
    return floats.reshape(*rows.scales.shape[:-1], -1)


_MEANING: dict[str, Callable[[QuantizedRows], Array]] = {
    "fp8": _scaled,
    "int8": _scaled,
    "int4": _scaled,
    "uint4": _lines,
    "mxfp4": _mxfp4_floats,
}
