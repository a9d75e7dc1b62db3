"""Row-wise kernels: normalisation and the activation of dense MLPs."""

from inlay.kernels import _backend
from inlay.kernels._arrays import Array


def rms_norm(x_TM: Array, weight_M: Array, eps: float, out_TM: Array) -> None:
    """Write `x / sqrt(mean(x^2) + eps) * weight`, row by row.

    Args:
        x_TM: float32, any row stride, contiguous columns; rows may be heads.
        weight_M: float32.
        eps: finite, not negative.
        out_TM: float32, writable; the same array as x or apart from it and weight.

    Raises:
        ArgumentError: a shape, dtype or stride is wrong; the message names the argument.

    Tolerance: 1e-6 relative.
    """
    _backend.ops.rms_norm(x_TM, weight_M, eps, out_TM)


def silu_mul(gate_up_T2F: Array, out_TF: Array) -> None:
    """Write `silu(gate) * up`, where gate and up are the halves of a row.

    Args:
        gate_up_T2F: float32, any row stride, contiguous columns; what one `linear` with gate and
            up weights stacked gives.
        out_TF: float32, writable.

    Raises:
        ArgumentError: a shape, dtype or stride is wrong; the message names the argument.

    Tolerance: 1e-6 relative for gates above -88; below, 6.1e-39 of `gate * up`, absolute.
    """
    _backend.ops.silu_mul(gate_up_T2F, out_TF)


def gelu_mul(gate_up_T2F: Array, out_TF: Array) -> None:
    """Write `gelu(gate) * up` with GELU's approximation by tanh; all else is as in `silu_mul`.

    Source: Gaussian Error Linear Units (arXiv 1606.08415), section 2.

    Tolerance: 1e-6 relative where the sigmoid of the exponent is not below 1e-38.
    """
    _backend.ops.gelu_mul(gate_up_T2F, out_TF)
