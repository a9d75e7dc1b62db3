"""Dense layers on packed weights."""

from typing import TYPE_CHECKING

from inlay.kernels import _backend
from inlay.kernels._arrays import Array

if TYPE_CHECKING:
    from inlay._native import kernels

    LinearWeight = kernels.LinearWeight
else:
    LinearWeight = _backend.ops.LinearWeight


def pack_linear(weight_NK: Array, dtype: str | None = None) -> LinearWeight:
    """Copy a weight matrix into the layout that `linear` reads.

    Args:
        weight_NK: float32, or bfloat16 (torch, or its bits as NumPy uint16); rows are output
            columns, as PyTorch stores them. The array can be dropped afterwards.
        dtype: `float32` or `bfloat16` to hold another dtype than given; fp32 is rounded to the
            nearest bf16, ties to even.

    Layout: panels of 64 output columns, fp32 `[N/64][K][64]`, bf16 `[N/64][K/2][64][2]`, zero
        padded, 64-byte aligned, huge pages when large; the same for every ISA. To fill a weight
        piece by piece use `LinearWeight(out_features, in_features, dtype)` and `set_rows`.
    Cost: one pass over the weight, 1 to 2 GB/s per core.
    """
    weight: LinearWeight = _backend.ops.pack_linear(weight_NK, dtype)
    return weight


def linear(
    x_TK: Array,
    weight: LinearWeight,
    out_TN: Array,
    *,
    bias_N: Array | None = None,
    accumulate: bool = False,
) -> None:
    """Write `x W^T (+ bias)` to `out`, or add it to what `out` holds.

    Args:
        x_TK: float32, any row stride, contiguous columns. T may be 0.
        weight: from `pack_linear`.
        out_TN: float32, writable, any row stride, contiguous columns, apart from x.
        bias_N: float32.
        accumulate: `out += ...`, for residual connections.

    Raises:
        ArgumentError: a shape, dtype, stride or overlap is wrong; the message names the argument.

    Tolerance: fp32 accumulation in ascending K with one rounding per step, so the relative error
        against exact arithmetic grows like sqrt(K) * 6e-8. bf16 weights are widened exactly.
    """
    _backend.ops.linear(x_TK, weight, out_TN, bias_N, accumulate)
