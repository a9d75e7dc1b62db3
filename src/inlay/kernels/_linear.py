"""Dense layers on packed weights."""

from typing import TYPE_CHECKING

from inlay.kernels import _backend
from inlay.kernels._arrays import Array

PANEL = 64

if TYPE_CHECKING:
    from inlay._native import kernels

    LinearWeight = kernels.LinearWeight
else:
    LinearWeight = _backend.ops.LinearWeight


def pack_linear(weight_NK: Array, format: str | None = None) -> LinearWeight:
    """Copy a weight matrix into the layout that `linear` reads.

    Args:
        weight_NK: float32, or bfloat16 (torch, or its bits as NumPy uint16); rows are output
            columns, as PyTorch stores them. The array can be dropped afterwards.
        format: one of `FORMATS`; by default the dtype that is given. fp32 is rounded to the
            nearest bf16, ties to even; formats with scales are made as by `quantize`.

    Raises:
        NotFiniteError: a row holds a NaN or an infinity, or a value that becomes one in the format.
        ArgumentError: another argument is wrong.

    The layout is that of `docs/kernels.md`, the same for every ISA, 64-byte aligned, in
        huge pages when large. To fill a weight piece by piece use
        `LinearWeight(out_features, in_features, format)` and `set_rows`, or `set_rows_quantized`
        with what `quantize` gives or a file holds; `dequantize` gives the weights that kernels use.
    Cost: one pass over the weight, per core 1 (int4) to 10 GB/s (int8) of source, on AVX-512.
    """
    weight: LinearWeight = _backend.ops.pack_linear(weight_NK, format)
    return weight


def head_rows(rows: int) -> int:
    """Rows of a weight from one head to the next one, for `linear_heads`: whole panels."""
    return -(-rows // PANEL) * PANEL


def linear_heads(x_THK: Array, weight: LinearWeight, out_THN: Array) -> None:
    """Write `x W^T` to `out`, where each of H heads has a matrix of its own.

    Args:
        x_THK: float32, contiguous in K.
        weight: `H * head_rows(N)` rows, those of head h from row `h * head_rows(N)` on.
        out_THN: float32, writable, contiguous in N, apart from x.

    Raises:
        ArgumentError: a shape, dtype, stride or overlap is wrong; the message names the argument.

    Tolerance: as `linear`.
    """
    _backend.ops.linear_heads(x_THK, weight, out_THN)


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
        out_TN: float32, writable, any row stride, contiguous columns, apart from x and bias.
        bias_N: float32.
        accumulate: `out += ...`, for residual connections.

    Raises:
        ArgumentError: a shape, dtype, stride or overlap is wrong; the message names the argument.

    Tolerance: activations are rounded to bf16 for weights in bfloat16, fp8 and mxfp4, to int8 (one
        scale per token and group of the format) for integer ones. Integer products are exact within
        a group; all else is fp32 in ascending K with one rounding per step, so the relative error
        against exact arithmetic on the rounded operands grows like sqrt(K) * 6e-8. A token with a
        NaN or an infinity gets NaN from integer formats.
    """
    _backend.ops.linear(x_TK, weight, out_TN, bias_N, accumulate)
