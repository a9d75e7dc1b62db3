"""Tensors as values: a header of 304 bytes, and the elements in C order behind it.

Little-endian: magic "NOOM", version u16, header bytes u16, dtype i32, dimensions i32, flags u64,
offset of the elements u64, their bytes u64, 8 global sizes i64 and 8 local ones, -1 where there is
no such dimension, and zeros. The same as Mooncake 0.3.13 writes for a tensor that is whole.
"""

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from inlay.core.errors import ArgumentError

if TYPE_CHECKING:
    import torch

HEADER_BYTES = 304
MAX_DIMENSIONS = 8
_MAGIC = b"NOOM"
_VERSION = 1
_FIELDS = struct.Struct("<4sHHiiQQQ8q8q")
# By torch's names, in the order of their numbers; bytes of an element.
_ITEM_BYTES = {
    "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4,
    "uint32": 4, "int64": 8, "uint64": 8, "bool": 1, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_DTYPES = tuple(_ITEM_BYTES)


@dataclass(frozen=True)
class Header:
    """What a value says of its tensor."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def total_bytes(self) -> int:
        """Of the value."""
        return HEADER_BYTES + self.size_bytes


def write_header(tensor: "torch.Tensor") -> bytes:
    """The header of a tensor.

    Raises:
        ArgumentError: more than 8 dimensions, or a dtype that has no number.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES or tensor.dim() > MAX_DIMENSIONS:
        raise ArgumentError(
            f"a tensor of {name} with {tensor.dim()} dimensions cannot be stored: at most "
            f"{MAX_DIMENSIONS} dimensions, of {', '.join(_DTYPES)}"
        )
    # A number of no dimensions comes back with one, as callers of Mooncake know it.
    shape = [*tensor.shape] or [1]
    sizes = shape + [-1] * (MAX_DIMENSIONS - len(shape))
    packed = _FIELDS.pack(
        _MAGIC,
        _VERSION,
        HEADER_BYTES,
        _DTYPES.index(name),
        len(shape),
        0,
        HEADER_BYTES,
        tensor.numel() * tensor.element_size(),
        *sizes,
        *sizes,
    )
    return packed.ljust(HEADER_BYTES, b"\0")


def read_header(value: Any) -> Header:
    """The header in front of a value's bytes.

    Raises:
        ArgumentError: the value is no tensor, or not whole.
    """
    memory = memoryview(value)
    if memory.nbytes < HEADER_BYTES:
        raise ArgumentError(f"a value of {memory.nbytes} bytes is no tensor")
    fields = _FIELDS.unpack_from(memory)
    magic, version, header_bytes, dtype, dimensions, _, offset, size = fields[:8]
    shape = tuple(fields[16 : 16 + max(0, dimensions)])
    if (
        (magic, version, header_bytes, offset) != (_MAGIC, _VERSION, HEADER_BYTES, HEADER_BYTES)
        or not 0 <= dtype < len(_DTYPES)
        or not 0 <= dimensions <= MAX_DIMENSIONS
        or any(extent < 0 for extent in shape)
        or math.prod(shape) * _ITEM_BYTES[_DTYPES[dtype]] != size
    ):
        raise ArgumentError("the value's header is that of no tensor")
    header = Header(_DTYPES[dtype], shape, size)
    if header.total_bytes != memory.nbytes:
        raise ArgumentError(
            f"a tensor of {header.total_bytes} bytes with its header lies in {memory.nbytes}"
        )
    return header


def tensor_at(memory: Any, header: Header) -> "torch.Tensor":
    """The tensor in place, in writable memory that begins with its header."""
    import torch

    dtype = getattr(torch, header.dtype)
    if not header.size_bytes:
        return torch.empty(header.shape, dtype=dtype)
    flat = torch.frombuffer(memory, dtype=torch.uint8)[HEADER_BYTES : header.total_bytes]
    # Elements begin where their size divides the address but for odd buffers, which are copied.
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).reshape(header.shape)


def parts_of(tensor: Any) -> list[Any]:
    """The buffers of a tensor's value: header and elements, which are copied if not contiguous.

    Raises:
        ArgumentError: no tensor, or none that can be stored.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"a torch.Tensor is stored, got {type(tensor).__name__}")
    whole = tensor.detach().contiguous()
    header = memoryview(write_header(whole))
    if not whole.numel():
        return [header]
    elements = whole.reshape(-1).view(torch.uint8)
    return [header, elements.numpy() if elements.device.type == "cpu" else elements]


def shards_of(tensor: Any, tp_size: int, split_dim: int) -> list[Any]:
    """The tensor in `tp_size` equal parts along a dimension.

    Raises:
        ArgumentError: it cannot be divided so.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"a torch.Tensor is stored, got {type(tensor).__name__}")
    if not 0 <= split_dim < tensor.dim() or tp_size < 1 or tensor.shape[split_dim] % tp_size:
        raise ArgumentError(
            f"a tensor of shape {tuple(tensor.shape)} has no {tp_size} equal parts along dimension "
            f"{split_dim}"
        )
    return list(tensor.chunk(tp_size, dim=split_dim))


def copied_tensor(value: Any) -> "torch.Tensor":
    """A tensor of its own memory from a value's bytes. Raises `ArgumentError` if it is none."""
    header = read_header(value)
    return tensor_at(np.frombuffer(value, np.uint8).copy(), header)


def write_safetensors(file_name: str, name: str, tensor: "torch.Tensor") -> None:
    """A file with one tensor. Raises `ArgumentError` where it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor}, file_name)
    except (OSError, SafetensorError, ValueError) as error:
        raise ArgumentError(f"{file_name}: {error}") from None


def read_safetensors(file_name: str, name: str | None) -> tuple[str, "torch.Tensor"]:
    """A tensor of a file, and its name there: the one that is asked for, else the only one.

    Raises:
        ArgumentError: no such file or tensor, or several, of which none has the name.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(file_name)
    except (OSError, SafetensorError) as error:
        raise ArgumentError(f"{file_name}: {error}") from None
    if name in found:
        return name, found[name]
    if len(found) != 1:
        raise ArgumentError(f"{file_name} has tensors {sorted(found)[:8]}, and no {name!r}")
    return next(iter(found.items()))
