"""Dense layers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.kernels._checks import (
    DTYPES,
    array_of,
    as_f32,
    check,
    check_size,
    converted,
    dtype_name,
    vector_of,
)


class LinearWeight:
    """A weight matrix, kept row-major here."""

    def __init__(self, out_features: int, in_features: int, dtype: str = "float32") -> None:
        check(out_features >= 1, f"out_features: must be at least 1, got {out_features}")
        check(in_features >= 1, f"in_features: must be at least 1, got {in_features}")
        self.dtype = dtype_name(dtype)
        self.shape = (out_features, in_features)
        self._weight_NK: npt.NDArray[Any] = np.zeros(self.shape, DTYPES[dtype])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._weight_NK.nbytes

    def set_rows(self, first: int, rows_NK: Any) -> None:
        """Fill output columns from `first` on."""
        rows = array_of(rows_NK, "rows_NK", 2, (np.float32, np.uint16))
        check_size(rows, "rows_NK", 1, self.shape[1], "in_features")
        end = first + rows.shape[0]
        check(
            0 <= first and end <= self.shape[0],
            f"first: rows {first}..{end} are outside the weight's {self.shape[0]}",
        )
        self._weight_NK[first:end] = converted(rows, self.dtype)

    def unpack(self) -> npt.NDArray[Any]:
        """The weight as `[N][K]`, bf16 as its bits."""
        return self._weight_NK.copy()


def pack_linear(weight_NK: Any, dtype: str | None = None) -> LinearWeight:
    """A `LinearWeight` holding a copy of the matrix."""
    source = array_of(weight_NK, "weight_NK", 2, (np.float32, np.uint16))
    check(min(source.shape) >= 1, f"weight_NK: has shape {source.shape}, sizes must be at least 1")
    own = "float32" if source.dtype == np.float32 else "bfloat16"
    rows, cols = source.shape
    weight = LinearWeight(rows, cols, own if dtype is None else dtype)
    weight.set_rows(0, source)
    return weight


def linear(
    x_TK: Any, weight: LinearWeight, out_TN: Any, bias_N: Any = None, accumulate: bool = False
) -> None:
    """`out = x W^T (+ bias) (+ out)`."""
    x, out = array_of(x_TK, "x_TK", 2), array_of(out_TN, "out_TN", 2, writable=True)
    check_size(x, "x_TK", 1, weight.shape[1], "the weight's inner size")
    check_size(out, "out_TN", 0, x.shape[0], "tokens of x_TK")
    check_size(out, "out_TN", 1, weight.shape[0], "the weight's output size")
    bias = vector_of(bias_N, "bias_N", weight.shape[0])
    check(not np.shares_memory(x, out), "out_TN: shares memory with x_TK")
    result = x @ as_f32(weight.unpack()).T
    if bias is not None:
        result += bias
    out[:] = out + result if accumulate else result
