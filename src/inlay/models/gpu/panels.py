"""Packed weights in a GPU's memory: the same bytes as in the host's, and how a kernel reads them.

The panels of `native/kernels/formats.h` suit a GPU as they are: along K, words of 64 columns lie
side by side, so that a warp reads whole lines, and the scales of a group lie before its words. So
an expert goes from host to GPU as one copy of its bytes, and both compute with the same codes.

Shapes: N columns of output, K columns of input, W words of K: a word has the weights of `steps`
successive k in one column.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inlay.core.weight_format import WeightFormat, format_named
from inlay.kernels import head_rows

PANEL = head_rows(1)
"""Columns of one."""
BLOCK_K = 128
"""Of a kernel's step: the longest group, so that a block has whole ones."""


@dataclass(frozen=True)
class Codes:
    """How a kernel takes weights from words; a compile-time constant of it.

    Step s of a word begins at bit `s // lanes * down + s % lanes * across`.

    Attributes:
        bits: of a code.
        lanes, across, down: where codes lie.
        number: `integer`, `float`, or `bfloat16`.
        mantissa: bits of it, of small floats.
        power: what a small float, taken as the float16 of the same bits, is multiplied by.
        bias: of integers.
        scale: as `WeightFormat.scale`.
        group: weights of a row that share a scale; 0 without, -1 for whole rows.
    """

    bits: int
    lanes: int
    across: int
    down: int
    number: str
    mantissa: int
    power: float
    bias: int
    scale: str
    group: int

    @property
    def steps(self) -> int:
        """Weights in a word."""
        return 32 // self.bits

    @property
    def group_words(self) -> int:
        """Words of a column in a group; more than there are where it has all of K."""
        return self.group // self.steps if self.group > 0 else 1 << 30

    @property
    def scale_words(self) -> int:
        """Words before a group that hold its scales."""
        return PANEL * _SCALE_BYTES[self.scale] // 4

    @property
    def word_scales(self) -> int:
        """Scales that a word would hold."""
        return 4 // (_SCALE_BYTES[self.scale] or 4)

    @property
    def scale_stride(self) -> int:
        """Scales from one group's to those of the next, as elements of their dtype."""
        if self.group <= 0:
            return 0
        return (self.scale_words + PANEL * self.group_words) * self.word_scales

    @property
    def scaled(self) -> str:
        """What is multiplied by scales: `weights`, or `sums` of a block or of a whole row, which is
        exact and cheaper; empty without scales.
        """
        if self.group == 0:
            return ""
        return "weights" if 0 < self.group < BLOCK_K else "sums"


_SCALE_BYTES = {"": 0, "bf16": 2, "float32": 4, "e8m0": 1, "bf16 and zero": 4}
_SCALE_DTYPES = {
    "": torch.int32,
    "bf16": torch.bfloat16,
    "float32": torch.float32,
    "e8m0": torch.uint8,
    "bf16 and zero": torch.int32,
}
# By bits of a code: lanes, across, down; of integers and of floats.
_INTEGER_PLACES = {8: (4, 8, 0), 4: (4, 8, 4)}
_FLOAT_PLACES = {16: (2, 16, 0), 8: (2, 16, 8), 4: (2, 16, 4)}
# Of e4m3 and e2m1: bits of mantissa, and 2 to how far their exponents' bias is below float16's.
_SMALL_FLOATS = {8: (3, 2.0**8), 4: (1, 2.0**14)}


def codes_of(weight_format: str) -> Codes:
    """The description for kernels of a format: all of the CPU kernels' but float32."""
    found = format_named(weight_format)
    if found.bits == 32:
        raise ValueError("codes_of: float32 has no codes")
    places = (_INTEGER_PLACES if found.is_integer else _FLOAT_PLACES)[found.bits]
    number = "integer" if found.is_integer else "float" if found.is_small_float else "bfloat16"
    mantissa, power = _SMALL_FLOATS[found.bits] if found.is_small_float else (0, 1.0)
    bias = found.bias if found.is_integer else 0
    return Codes(found.bits, *places, number, mantissa, power, bias, found.scale, found.group)


@dataclass(frozen=True)
class Panels:
    """Some matrices of one size in a format, each in panels of 64 rows `[N, K]`.

    Attributes:
        data: uint8 `[matrices, bytes]`; the bytes of `LinearWeight.panels()`.
        columns: K.
    """

    data: Tensor
    weight_format: str
    columns: int
    codes: Codes

    @classmethod
    def empty(
        cls, matrices: int, rows: int, columns: int, weight_format: str, device: torch.device
    ) -> "Panels":
        """Zeroed memory, which stands for weights of 0."""
        count = -(-rows // PANEL)
        size = (matrices, count * panel_bytes(format_named(weight_format), columns))
        data = torch.zeros(size, dtype=torch.uint8, device=device)
        return cls(data, weight_format, columns, codes_of(weight_format))

    def set(self, matrix: int, panels: NDArray[np.uint8]) -> None:
        """Copy one from the host."""
        # Weights lend their memory read-only, which PyTorch does not know.
        self.data[matrix].copy_(torch.from_numpy(np.require(panels, requirements="W")))

    @property
    def words(self) -> Tensor:
        """The memory as 32-bit words."""
        return self.data.view(torch.int32)

    @property
    def scales(self) -> Tensor:
        """The same memory as elements of the scales' dtype."""
        return self.data.view(_SCALE_DTYPES[self.codes.scale])

    @property
    def panel_words(self) -> int:
        """Words from one panel to the next."""
        return panel_bytes(format_named(self.weight_format), self.columns) // 4

    @property
    def column_words(self) -> int:
        """W of all of K, which is padded."""
        return format_named(self.weight_format).padded(self.columns) // self.codes.steps


def panel_bytes(weight_format: WeightFormat, columns: int) -> int:
    """Of 64 rows."""
    scales = weight_format.scale_bytes * weight_format.groups(columns)
    return PANEL * (scales + weight_format.padded(columns) * weight_format.bits // 8)
