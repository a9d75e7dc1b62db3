"""Tensors in memory as entries: NumPy's and torch's, which is not imported for it."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import WeightsMismatchError
from inlay.transfer import Access, Segment, TransferEngine
from inlay.weights.manifest import ITEM_BYTES, Entry, count

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Which box of a tensor a publisher has.

    Attributes:
        whole: shape of the tensor.
        corner: where the box begins, along each axis.
    """

    whole: tuple[int, ...]
    corner: tuple[int, ...]


def live_entries(tensors: Mapping[str, Any], parts: Mapping[str, Part]) -> list[Entry]:
    """Entries without digests, in the order of the widest elements first, as safetensors has it.

    Raises:
        WeightsMismatchError: a dtype that safetensors does not have, or a part that is none.
    """
    if strangers := sorted(parts.keys() - tensors.keys()):
        raise WeightsMismatchError(f"parts of tensors that are not given: {', '.join(strangers)}")
    entries: list[Entry] = []
    at = 0
    named = [(name, _dtype(name, tensor), tensor) for name, tensor in tensors.items()]
    for name, dtype, tensor in sorted(named, key=lambda one: (-ITEM_BYTES[one[1]], one[0])):
        part, shape = parts.get(name), tuple(int(size) for size in tensor.shape)
        if part is not None and (
            not len(part.whole) == len(part.corner) == len(shape)
            or any(
                not 0 <= at <= at + size <= whole
                for at, size, whole in zip(part.corner, shape, part.whole, strict=True)
            )
        ):
            raise WeightsMismatchError(f"{name} {list(shape)} is no part of {part}")
        entry = Entry(
            name=name,
            dtype=dtype,
            shape=shape,
            start=at,
            whole=part.whole if part else (),
            corner=part.corner if part else (),
        )
        entries.append(entry)
        at += entry.size_bytes
    return entries


def copy_tensors(
    engine: TransferEngine, entries: Sequence[Entry], tensors: Mapping[str, Any], to: Segment
) -> None:
    """Copy each to its place. Of a CUDA device through the engine, whose streams must be done."""
    room = np.frombuffer(memoryview(to), np.uint8)
    for entry in entries:
        tensor = tensors[entry.name]
        if not entry.size_bytes:
            continue
        if _copy_host(tensor, room[entry.start : entry.start + entry.size_bytes]):
            continue
        with engine.register(tensor.contiguous(), remote=Access.NONE) as segment:
            engine.read(
                to[entry.start : entry.start + entry.size_bytes],
                segment[0 : entry.size_bytes],  # type: ignore[arg-type]  # far memory is a side, too
            )


def _copy_host(tensor: Any, to: npt.NDArray[np.uint8]) -> bool:
    """Copy the bytes of a tensor; False: a device has them."""
    if isinstance(tensor, np.ndarray):
        to[:] = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
        return True
    if str(tensor.device.type) != "cpu":
        return False
    tensor = tensor.detach().contiguous()  # lives until the copy is done
    size = count(tensor.shape) * tensor.element_size()
    to[:] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.data_ptr()))
    return True


def _dtype(name: str, tensor: Any) -> str:
    own = str(tensor.dtype).rpartition(".")[2]
    dtype = _DTYPES.get(own)
    if dtype is None:
        raise WeightsMismatchError(f"{name} has dtype {own}: supported are {', '.join(_DTYPES)}")
    return dtype
