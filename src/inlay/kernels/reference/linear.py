"""Dense layers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.weight_format import format_named
from inlay.kernels._checks import (
    F32,
    MAX_BYTES,
    array_of,
    check,
    check_apart,
    check_size,
    vector_of,
)
from inlay.kernels.reference.blocks import check_no_blocks, checked_blocks
from inlay.kernels.reference.formats import (
    PANEL,
    StoredRows,
    check_inner_size,
    check_scales,
    checked_quantized,
    panel_bytes,
    source_of,
)


class LinearWeight:
    """A weight matrix in a format."""

    def __init__(self, out_features: int, in_features: int, format: str = "float32") -> None:
        check(out_features >= 1, f"out_features: must be at least 1, got {out_features}")
        check(in_features >= 1, f"in_features: must be at least 1, got {in_features}")
        named = format_named(format)
        check_inner_size(named, "in_features", in_features)
        check(
            -(-out_features // PANEL) * panel_bytes(named, in_features) <= MAX_BYTES,
            f"out_features: {out_features} rows of {in_features} take more than the 2^47 bytes "
            "that a process can address",
        )
        self.shape = (out_features, in_features)
        self.rows = StoredRows.zeros(out_features, in_features, named)

    @property
    def format(self) -> str:
        """Name of the format."""
        return self.rows.format.name

    @property
    def nbytes(self) -> int:
        """Bytes of the panels."""
        return self.panels().nbytes

    def _range(self, first: int, count: int) -> slice:
        check(
            0 <= first <= self.shape[0] - count,
            f"first: {count} rows from {first} on are outside the weight's {self.shape[0]}",
        )
        return slice(first, first + count)

    def set_rows(self, first: int, rows_NK: Any) -> None:
        """Fill output columns from `first` on."""
        check_no_blocks(self.rows.format)
        source = array_of(rows_NK, "rows_NK", 2, (np.float32, np.uint16))
        check_size(source, "rows_NK", 1, self.shape[1], "in_features")
        self.rows.set(self._range(first, len(source)), source_of(source, "rows_NK"), "rows_NK")

    def set_rows_quantized(self, first: int, q_NK: Any, scales_NG: Any) -> None:
        """Fill output columns with integers or small floats, and scales."""
        format = self.rows.format
        check_scales(format)
        q, scales = checked_quantized(q_NK, scales_NG, format, self.shape[1], ("q_NK", "scales_NG"))
        self.rows.set_quantized(self._range(first, len(q)), q, scales)

    def set_rows_blocks(self, first: int, blocks_NB: Any) -> None:
        """Fill output columns with the blocks of a file."""
        blocks = checked_blocks(blocks_NB, self.rows.format, self.shape[1], "blocks_NB")
        self.rows.set_blocks(self._range(first, len(blocks)), blocks)

    def dequantize(self) -> F32:
        """The weights that products use, `[N][K]`."""
        return self.rows.values().copy()

    def panels(self) -> npt.NDArray[np.uint8]:
        """The bytes of the packed weight."""
        return self.rows.panels()


def pack_linear(weight_NK: Any, format: str | None = None) -> LinearWeight:
    """A `LinearWeight` holding a copy of the matrix."""
    source = array_of(weight_NK, "weight_NK", 2, (np.float32, np.uint16))
    check(min(source.shape) >= 1, f"weight_NK: has shape {source.shape}, sizes must be at least 1")
    if format is None:
        format = "float32" if source.dtype == np.float32 else "bfloat16"
    check_inner_size(format_named(format), "weight_NK", source.shape[1])
    rows, cols = source.shape
    weight = LinearWeight(rows, cols, format)
    weight.rows.set(slice(0, rows), source_of(source, "weight_NK"), "weight_NK")
    return weight


def map_linear(out_features: int, in_features: int, format: str, panels: Any) -> LinearWeight:
    """A weight from the bytes of its panels, copied here."""
    weight = LinearWeight(out_features, in_features, format)
    weight.rows.set_panels(bytes_of(panels, "panels", weight.nbytes))
    return weight


def bytes_of(value: Any, name: str, size: int) -> npt.NDArray[np.uint8]:
    """Contiguous bytes of a known number."""
    try:
        flat = np.frombuffer(value, np.uint8)
    except (TypeError, ValueError, BufferError):
        flat = None
    check(
        flat is not None,
        f"{name}: must be contiguous bytes, e.g. a memoryview of a mapped file",
    )
    assert flat is not None
    check(
        flat.size == size,
        f"{name}: holds {flat.size} bytes, but its shape and format need {size}",
    )
    return flat


def linear_heads(x_THK: Any, weight: LinearWeight, out_THN: Any) -> None:
    """`out = x W^T` with the rows of each head."""
    x, out = array_of(x_THK, "x_THK", 3), array_of(out_THN, "out_THN", 3, writable=True)
    heads, columns = x.shape[1], out.shape[2]
    check_size(x, "x_THK", 2, weight.shape[1], "the weight's inner size")
    for dim in range(2):
        check_size(out, "out_THN", dim, x.shape[dim], "the shape of x_THK")
    rows = -(-columns // PANEL) * PANEL
    check(
        heads >= 1 and weight.shape[0] == heads * rows,
        f"weight: has {weight.shape[0]} rows, expected {heads} heads of {rows}",
    )
    check_apart("out_THN", out, x_THK=x)
    for head in range(heads):
        first = head * rows
        out[:, head] = weight.rows.times(x[:, head])[:, first : first + columns]


def linear(
    x_TK: Any, weight: LinearWeight, out_TN: Any, bias_N: Any = None, accumulate: bool = False
) -> None:
    """`out = x W^T (+ bias) (+ out)`."""
    x, out = array_of(x_TK, "x_TK", 2), array_of(out_TN, "out_TN", 2, writable=True)
    check_size(x, "x_TK", 1, weight.shape[1], "the weight's inner size")
    check_size(out, "out_TN", 0, x.shape[0], "tokens of x_TK")
    check_size(out, "out_TN", 1, weight.shape[0], "the weight's output size")
    bias = vector_of(bias_N, "bias_N", weight.shape[0])
    check_apart("out_TN", out, x_TK=x, bias_N=bias)
    result = weight.rows.times(x)
    if bias is not None:
        result += bias
    out[:] = out + result if accumulate else result
