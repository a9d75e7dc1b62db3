"""Functions of single rows."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from inlay.core.errors import ArgumentError
from inlay.kernels._checks import F32, array_of, check, check_apart, check_size, vector_of


def silu(x: F32) -> F32:
    """`x * sigmoid(x)`."""
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-x)), np.float32)


def normalised(x: F32, weight_M: F32, eps: float) -> F32:
    """`x / sqrt(mean(x^2) + eps) * weight`."""
    mean = np.mean(x * x, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + np.float32(eps)) * weight_M, np.float32)


def check_eps(name: str, eps: float) -> None:
    """Raise unless an epsilon can be added under a root."""
    check(math.isfinite(eps) and eps >= 0, f"{name}: must be finite and not negative, got {eps}")


def in_place(out: F32, x: F32) -> bool:
    """Whether the rows of `out` are those of `x`, or their beginnings."""
    return out.ctypes.data == x.ctypes.data and (len(x) == 1 or out.strides[0] == x.strides[0])


def rms_norm(x_TM: Any, weight_M: Any, eps: float, out_TM: Any) -> None:
    """`x / sqrt(mean(x^2) + eps) * weight`."""
    x, out = array_of(x_TM, "x_TM", 2), array_of(out_TM, "out_TM", 2, writable=True)
    check(x.shape[1] >= 1, f"x_TM: has shape {x.shape}, rows must not be empty")
    check_size(out, "out_TM", 0, x.shape[0], "rows of x_TM")
    check_size(out, "out_TM", 1, x.shape[1], "columns of x_TM")
    weight = vector_of(weight_M, "weight_M", x.shape[1])
    if weight is None:
        raise ArgumentError("weight_M: must be an array")
    check_eps("eps", eps)
    check_apart("out_TM", out, weight_M=weight, x_TM=None if in_place(out, x) else x)
    out[:] = normalised(x, weight, eps)


def gelu(x: F32) -> F32:
    """`x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`."""
    wide = np.asarray(x, np.float64)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return np.asarray(wide * (1 + np.tanh(inner)) / 2, np.float32)


def silu_mul(gate_up_T2F: Any, out_TF: Any) -> None:
    """`silu(gate) * up` of the halves of each row."""
    _gated_mul(gate_up_T2F, out_TF, silu)


def gelu_mul(gate_up_T2F: Any, out_TF: Any) -> None:
    """`gelu(gate) * up` of the halves of each row."""
    _gated_mul(gate_up_T2F, out_TF, gelu)


def _gated_mul(gate_up_T2F: Any, out_TF: Any, gated: Callable[[F32], F32]) -> None:
    gate_up = array_of(gate_up_T2F, "gate_up_T2F", 2)
    out = array_of(out_TF, "out_TF", 2, writable=True)
    check_size(out, "out_TF", 0, gate_up.shape[0], "rows of gate_up_T2F")
    check_size(gate_up, "gate_up_T2F", 1, 2 * out.shape[1], "twice the columns of out_TF")
    check_apart("out_TF", out, gate_up_T2F=None if in_place(out, gate_up) else gate_up)
    out[:] = gated(gate_up[:, : out.shape[1]]) * gate_up[:, out.shape[1] :]
