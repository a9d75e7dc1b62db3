"""Argument checks and bf16 conversion of the NumPy references."""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import ArgumentError

F32 = npt.NDArray[np.float32]
MAX_BYTES = 1 << 47
"""What a process can address: no weights and no page are larger."""
DTYPES = {"float32": np.float32, "bfloat16": np.uint16}


def array_of(
    value: Any, name: str, dims: int, dtype: Any = np.float32, writable: bool = False
) -> npt.NDArray[Any]:
    """The argument as a NumPy array, or an error that names it."""
    if not isinstance(value, np.ndarray):
        if not hasattr(value, "__dlpack__"):
            raise ArgumentError(f"{name}: must be a NumPy array or a torch CPU tensor")
        if str(value.dtype) == "torch.bfloat16":
            value = value.view(sys.modules["torch"].uint16)
        value = value.detach().numpy()
    array: npt.NDArray[Any] = value
    if array.ndim != dims:
        raise ArgumentError(f"{name}: must have {dims} dimensions, has {array.ndim}")
    allowed = dtype if isinstance(dtype, tuple) else (dtype,)
    if array.dtype not in allowed:
        names = " or ".join(np.dtype(d).name for d in allowed)
        raise ArgumentError(f"{name}: must be {names}, is {array.dtype}")
    if writable and not array.flags.writeable:
        raise ArgumentError(f"{name}: is read-only")
    if array.size and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        raise ArgumentError(f"{name}: the last dimension must be contiguous")
    return array


def check_size(array: npt.NDArray[Any], name: str, dim: int, size: int, meaning: str) -> None:
    """Raise unless one dimension has the size that another argument asks for."""
    if array.shape[dim] != size:
        raise ArgumentError(
            f"{name}: has shape {array.shape}, but dimension {dim} must be {size} ({meaning})"
        )


def check_apart(name: str, out: npt.NDArray[Any], **inputs: npt.NDArray[Any] | None) -> None:
    """Raise when `out` lies where one of the inputs lies."""
    for other, array in inputs.items():
        if array is not None and np.may_share_memory(out, array):
            raise ArgumentError(f"{name}: shares memory with {other}")


def check(condition: bool, message: str) -> None:
    """Raise `message` unless the condition holds."""
    if not condition:
        raise ArgumentError(message)


def vector_of(value: Any, name: str, size: int) -> F32 | None:
    """An optional fp32 vector."""
    if value is None:
        return None
    vector = array_of(value, name, 1)
    check_size(vector, name, 0, size, "one value per column")
    return vector


def dtype_name(name: str) -> str:
    """The name itself, if kernels know it."""
    check(name in DTYPES, f"dtype: must be 'float32' or 'bfloat16', got {name!r}")
    return name


def to_bf16(x: F32) -> npt.NDArray[np.uint16]:
    """The bits of x rounded to bf16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> F32:
    """fp32 values of bf16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def converted(source: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The matrix in a weight dtype."""
    if source.dtype == DTYPES[dtype]:
        return source
    return to_bf16(source) if dtype == "bfloat16" else from_bf16(source)


def as_f32(weight: npt.NDArray[Any]) -> F32:
    """fp32 values of fp32 or bf16 bits."""
    return from_bf16(weight) if weight.dtype == np.uint16 else weight
