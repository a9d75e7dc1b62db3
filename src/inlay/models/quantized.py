"""Quantised matrices as checkpoints hold them: their tensors' names, and what they mean.

Nothing here makes a float copy of more than the rows that are asked for.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from inlay.core.errors import ModelFileError
from inlay.core.model_shape import ModelShape
from inlay.core.quantization import Quantization
from inlay.core.weight_format import format_named
from inlay.models.weight_files import Index, WeightFiles
from inlay.models.weight_names import Expected

# Of zero points, which the kernels hold below 128.
_MOST_ZERO = 120.0
_MOST_E4M3 = 448.0
# e2m1 by its code: a sign, two bits of exponent, one of mantissa. Source: OCP Microscaling
# Formats (MX) specification 1.0.
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True)
class QuantizedRows:
    """Rows of a matrix, or of some matrices of one size: `[..., N, K]`.

    Attributes:
        weight_format: of the kernels, which holds the same.
        codes: what is stored of the weights, `[..., N, *]`; of integers one to a byte.
        scales: `[..., N, K / group]`; where the kernels have zero points, twice as many: each is
            followed by its minimum, and weights are `minimum + scale * code`.
        group: weights of a row that share a scale.
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
        scales in float32, or powers of two in a byte.
        """
        if format_named(self.weight_format).has_zeros:
            codes, scales = _with_zero_points(self)
        elif format_named(self.weight_format).is_integer:
            codes, scales = self.codes, self.scales.float()
        else:
            codes = self.codes.contiguous().view(torch.uint8)
            scales = self.scales if self.weight_format == "mxfp4" else self.scales.float()
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
    assert part.start % group == 0 and (part.stop % group == 0 or part.stop == columns)

    def cut(stored: Tensor, of: int, start: int, stop: int) -> Tensor:
        each = stored.shape[-1]
        return stored[..., start * each // of : stop * each // of]

    groups = -(-columns // group)
    return replace(
        matrix,
        codes=cut(matrix.codes, columns, part.start, part.stop),
        scales=cut(matrix.scales, groups, part.start // group, -(-part.stop // group)),
        columns=part.stop - part.start,
    )


def nibbles(packed: Tensor) -> Tensor:
    """The two codes of each byte, the low one first."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def _scaled(rows: QuantizedRows, values: Tensor) -> Tensor:
    wide = rows.scales.float().repeat_interleave(rows.group, dim=-1)
    return values * wide[..., : rows.columns]


def _fp8_floats(rows: QuantizedRows) -> Tensor:
    return _scaled(rows, rows.codes.float())


def _integer_floats(rows: QuantizedRows) -> Tensor:
    return _scaled(rows, rows.codes.float())


def _lines(rows: QuantizedRows) -> Tensor:
    scales, minimums = rows.scales[..., 0::2], rows.scales[..., 1::2]
    codes = rows.codes.float().reshape(*scales.shape, rows.group)
    return (minimums[..., None] + scales[..., None] * codes).flatten(-2)


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
    return codes, torch.stack((scales, zeros), dim=-1).flatten(-2)


def _mxfp4_floats(rows: QuantizedRows) -> Tensor:
    values = _E2M1[nibbles(rows.codes).int()].view(*rows.scales.shape, rows.group)
    return torch.ldexp(values, rows.scales.int()[..., None] - 127).flatten(-2)


_MEANING: dict[str, Callable[[QuantizedRows], Tensor]] = {
    "fp8": _fp8_floats,
    "int8": _integer_floats,
    "int4": _integer_floats,
    "uint4": _lines,
    "mxfp4": _mxfp4_floats,
}


class QuantizedFiles:
    """`Tensors` of a checkpoint whose matrices are quantised, some or all."""

    def __init__(self, files: WeightFiles, quantization: Quantization) -> None:
        self._files, self._quantization = files, quantization
        self._layout = _LAYOUTS[quantization.method]

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """As `WeightFiles.check`, of what the files hold of each."""
        self._files.check(chain.from_iterable(map(self._stored, expected)), optional)

    def is_bfloat16(self, name: str) -> bool:
        """Whether its floats are."""
        return self._files.is_bfloat16(name)

    def fingerprint(self, shape: ModelShape) -> str:
        """As `WeightFiles.fingerprint`."""
        return self._files.fingerprint(shape)

    def _stored(self, expected: Expected) -> tuple[Expected, ...]:
        if not self._is_quantized(expected.name):
            return (expected,)
        return self._layout.tensors(expected, self._quantization.group)

    def stored(self, expected: Expected) -> tuple["StoredTensor", ...]:
        """The tensors in which the files have a matrix, or the one of floats."""
        quantized = self._is_quantized(expected.name)
        together = self._layout.rows_together(self._quantization.group) if quantized else 1
        return tuple(
            StoredTensor(
                matrix=expected.name,
                number=number if quantized else None,
                name=one.name,
                shape=one.shape,
                dtype=self._files.tensors[one.name].dtype,
                rows_together=together if number == 0 else 1,
                matrix_rows=together if number == 1 else 1,
            )
            for number, one in enumerate(self._stored(expected))
        )

    def get_stored(self, name: str, rows: slice) -> Tensor:
        """Some rows of a tensor as the files have it."""
        return self._files.get(name, rows)

    def quantize(self, rows_NK: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of a matrix as codes and scales, each weight the nearest that there is.

        Args:
            rows_NK: float32; as many at a time as share scales.
        """
        assert self._layout.quantize is not None, "of models that are not trained"
        return self._layout.quantize(rows_NK, self._quantization.group)

    def holds(self, name: str) -> bool:
        """Whether it is there, as floats or quantised."""
        return name in self._files.tensors or self._is_quantized(name)

    def same(self, other: "QuantizedFiles", name: str, index: int | None = None) -> bool:
        """As `WeightFiles.same`, of all that there is for a matrix."""
        parts = [name]
        if self._is_quantized(name):
            parts = [self._layout.codes(name), self._layout.scales(name)]
        return self._quantization == other._quantization and all(
            self._files.same(other._files, part, index) for part in parts
        )

    def view(self, name: str) -> Matrix:
        """As `WeightFiles.view`; what is quantised is read."""
        return self.get(name) if self._is_quantized(name) else self._files.view(name)

    def give_back(self) -> None:
        """As `WeightFiles.give_back`."""
        self._files.give_back()

    def get(self, name: str, index: Index = None) -> Matrix:
        """The tensor, or its quantised rows; or one matrix or some rows of it."""
        if not self._is_quantized(name):
            return self._files.get(name, index)
        if isinstance(index, slice):
            return self.get(name)[index]  # the scales of fp8 have other rows
        codes_name, scales_name = self._layout.codes(name), self._layout.scales(name)
        codes, scales = (self._files.get(part, index) for part in (codes_name, scales_name))
        if codes.dtype != self._layout.dtype:
            raise ModelFileError(
                f"{self._files.directory}: {codes_name} has dtype {codes.dtype} instead of "
                f"{self._layout.dtype}: config.json names another quantisation than the files have"
            )
        return self._layout.rows(self._quantization, codes, scales)

    def _is_quantized(self, name: str) -> bool:
        return self._layout.scales(name) in self._files.tensors


@dataclass(frozen=True)
class StoredTensor:
    """One of the tensors in which files have a matrix.

    Attributes:
        matrix: its name.
        number: 0 has the codes of a quantised matrix, 1 the scales, others nothing that depends on
            its weights; None: it is a tensor of floats.
        rows_together: of this tensor, that share scales.
        matrix_rows: for which one of its rows stands.
    """

    matrix: str
    number: int | None
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows_together: int
    matrix_rows: int


@dataclass(frozen=True)
class _Layout:
    """How one method names and shapes what belongs to a matrix.

    Attributes:
        codes, scales: names of its tensors, by its own.
        dtype: of the codes.
        tensors: all that there is for a matrix, by the group of its scales.
        rows: what is read, as rows.
        quantize: the inverse, of rows in float32: codes and scales.
        rows_together: that share a scale, by the group.
    """

    codes: Callable[[str], str]
    scales: Callable[[str], str]
    dtype: torch.dtype
    tensors: Callable[[Expected, int], tuple[Expected, ...]]
    rows: Callable[[Quantization, Tensor, Tensor], QuantizedRows]
    quantize: Callable[[Tensor, int], tuple[Tensor, Tensor]] | None = None
    rows_together: Callable[[int], int] = lambda group: 1


def _fp8_tensors(matrix: Expected, group: int) -> tuple[Expected, ...]:
    blocks = tuple(-(-size // group) for size in matrix.shape)
    return (matrix, Expected(f"{matrix.name}_scale_inv", blocks))


def _fp8_rows(of: Quantization, codes: Tensor, scales: Tensor) -> QuantizedRows:
    by_row = scales.repeat_interleave(of.group, dim=0)[: len(codes)]
    return QuantizedRows(of.weight_format, codes, by_row, of.group, codes.shape[1])


def _fp8_quantized(rows_NK: Tensor, group: int) -> tuple[Tensor, Tensor]:
    rows, columns = rows_NK.shape
    padded = torch.nn.functional.pad(rows_NK, (0, -columns % group, 0, -rows % group))
    blocks = padded.view(len(padded) // group, group, -1, group)
    largest = blocks.abs().amax((1, 3))
    scales = torch.where(largest > 0, largest / _MOST_E4M3, 1.0)
    codes = (blocks / scales[:, None, :, None]).flatten(2).flatten(0, 1)[:rows, :columns]
    return codes.to(torch.float8_e4m3fn), scales


def _int4_tensors(matrix: Expected, group: int) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    return (
        Expected(f"{matrix.name}_packed", (rows, columns // 8)),
        Expected(f"{matrix.name}_scale", (rows, columns // group)),
        Expected(f"{matrix.name}_shape", (2,)),
    )


def _int4_rows(of: Quantization, codes: Tensor, scales: Tensor) -> QuantizedRows:
    # Eight to a word, the first one lowest: as bytes, two to each.
    integers = nibbles(codes.view(torch.uint8)).view(torch.int8) - 8
    return QuantizedRows(of.weight_format, integers, scales, of.group, 8 * codes.shape[1])


def _int4_quantized(rows_NK: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """A scale is a 7.5th of a group's largest weight, as makers' tools have it."""
    groups = rows_NK.reshape(len(rows_NK), -1, group)
    scales = (groups.abs().amax(-1) / 7.5).bfloat16()
    steps = torch.where(scales > 0, scales, 1.0).float()
    codes = (groups / steps[..., None]).round().clamp(-8, 7).to(torch.int32).flatten(1) + 8
    places = 4 * torch.arange(8, dtype=torch.int32)
    words = (codes.view(len(codes), -1, 8) << places).sum(-1, dtype=torch.int32)
    return words, scales


def _mxfp4_tensors(matrix: Expected, group: int) -> tuple[Expected, ...]:
    experts, columns, rows = matrix.shape  # files with floats have columns first, these do not
    scales = (experts, rows, columns // group)
    return (
        Expected(f"{matrix.name}_blocks", (*scales, group // 2)),
        Expected(f"{matrix.name}_scales", scales),
    )


def _mxfp4_rows(of: Quantization, codes: Tensor, scales: Tensor) -> QuantizedRows:
    columns = of.group * scales.shape[-1]
    return QuantizedRows(of.weight_format, codes.flatten(-2), scales, of.group, columns)


_LAYOUTS = {
    "fp8": _Layout(
        str,
        "{}_scale_inv".format,
        torch.float8_e4m3fn,
        _fp8_tensors,
        _fp8_rows,
        _fp8_quantized,
        rows_together=int,
    ),
    "compressed-tensors": _Layout(
        "{}_packed".format,
        "{}_scale".format,
        torch.int32,
        _int4_tensors,
        _int4_rows,
        _int4_quantized,
    ),
    "mxfp4": _Layout(
        "{}_blocks".format, "{}_scales".format, torch.uint8, _mxfp4_tensors, _mxfp4_rows
    ),
}
