"""A GGUF file, or the parts of one: metadata and tensors, mapped. Loads no torch.

Source: the GGUF specification of ggml. The format's own library makes several arrays of each
string: 20 processor seconds for a vocabulary of 150,000 tokens, which takes 0.3 here.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.core.text_files import refuse_lfs_pointer

LINK = "model.gguf"
"""The file, in a directory that `gguf_directory` made."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # of data, where metadata name no other
_MOST_ENTRIES = 4 << 20  # of an array; vocabularies have some hundred thousand
_MOST_NESTED = 8  # arrays in arrays
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
# Types of metadata with a fixed size, by number, as NumPy calls them.
_NUMBERS: dict[int, np.dtype[Any]] = {
    number: np.dtype(name)
    for number, name in (
        *enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?")),
        *enumerate(("<u8", "<i8", "<f8"), 10),
    )
}
# Tensors whose values NumPy has; those of others are bytes.
_DTYPES: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.F16: np.dtype("<f2"),
    GGMLQuantizationType.F32: np.dtype("<f4"),
    GGMLQuantizationType.F64: np.dtype("<f8"),
    GGMLQuantizationType.I8: np.dtype("<i1"),
    GGMLQuantizationType.I16: np.dtype("<i2"),
    GGMLQuantizationType.I32: np.dtype("<i4"),
    GGMLQuantizationType.I64: np.dtype("<i8"),
}
_BYTE = np.dtype("u1")
_PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

_length = struct.Struct("<Q").unpack_from
_word = struct.Struct("<I").unpack_from


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        name: as the file has it.
        kind: the type of its values.
        shape: rows before columns, which is the other way round in the file.
        file: the part that holds it.
        offset: of its first byte in that file.
        data: its values, mapped: floats and integers as such, `shape`; bfloat16 and blocks as
            bytes, `[..., bytes of a row]`.
    """

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    file: Path
    offset: int
    data: NDArray[Any]


class GgufFile:
    """What one or several files hold.

    Attributes:
        files: all parts, in order.
        metadata: by key; values as Python has them.
        tensors: by name.
    """

    def __init__(self, file: Path) -> None:
        """Map a file, and those that belong to it (`-00001-of-00003`); any of them will do.

        Raises:
            ModelNotFoundError: there is no such file, or a part of it is missing.
            ModelFileError: it is cut off or damaged.
            UnsupportedModelError: it is of a version, or has a tensor of a type, that is not known.

        Cost: 0.3 processor seconds for a vocabulary of 150,000 tokens and as many merges.
        """
        self.files = parts_of(file)
        readers = [_read(part) for part in self.files]
        self.metadata: Mapping[str, Any] = readers[0].metadata
        self.tensors: Mapping[str, GgufTensor] = {
            name: tensor for reader in readers for name, tensor in reader.tensors.items()
        }
        parts = self.metadata.get("split.count", 1)
        if not isinstance(parts, int):
            raise ModelFileError(
                f"{file}: split.count is {parts!r}, not a whole number: download it again"
            )
        if parts > len(readers):
            raise ModelNotFoundError(
                f"{file} is one of {parts} files of a model, whose other ones cannot be found by "
                f"its name: call them NAME-00001-of-{parts:05d}.gguf and so on, as they were "
                "published, in one folder"
            )


class _Reader:
    """Reads one file from its beginning, and believes no size that the file does not have.

    Attributes:
        metadata, tensors: as `GgufFile` has them.
    """

    def __init__(self, file: Path) -> None:
        with file.open("rb") as opened:
            self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._file, self._size, self._at = file, len(self._data), 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        if self._data[:4] != _MAGIC:
            raise ValueError(f"it begins with {self._data[:4]!r}, not with {_MAGIC!r}")
        self._at = len(_MAGIC)
        version = self._number(np.dtype("<u4"))
        if version not in _VERSIONS:
            raise UnsupportedModelError(
                f"{file} is GGUF of version {version}; read are {_VERSIONS[0]} and {_VERSIONS[1]}: "
                "take a file that was made with a current llama.cpp, or the model's *.safetensors"
            )
        tensors, keys = self._number(np.dtype("<u8")), self._number(np.dtype("<u8"))
        for _ in range(keys):
            (key,) = self._strings(1)
            if key in self.metadata:
                raise ValueError(f"it has {key} twice")
            self.metadata[key] = self._value(self._number(np.dtype("<u4")))
        heads = [self._tensor_head() for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in heads:
            if name in self.tensors:
                raise ValueError(f"it has tensor {name} twice")
            self.tensors[name] = self._tensor(name, shape, kind, start + offset)

    def _advance(self, size: int) -> int:
        """The place of what comes next, which has so many bytes."""
        at, end = self._at, self._at + size
        if end > self._size:
            raise ValueError(f"what lies at {at} would end at {end}")
        self._at = end
        return at

    def _number(self, dtype: np.dtype[Any]) -> Any:
        return self._numbers(dtype, 1)[0]

    def _numbers(self, dtype: np.dtype[Any], count: int) -> list[Any]:
        at = self._advance(count * dtype.itemsize)
        values: list[Any] = np.frombuffer(self._data, dtype, count, at).tolist()
        return values

    def _strings(self, count: int) -> list[str]:
        # Vocabularies have some hundred thousand: no call for each but what reads it.
        data, size, at, strings = self._data, self._size, self._at, []
        for _ in range(count):
            first = at + 8
            end = first + _length(data, at)[0] if first <= size else first
            if end > size:
                raise ValueError(f"what lies at {at} would end at {end}")
            strings.append(str(data[first:end], "utf-8"))
            at = end
        self._at = at
        return strings

    def _value(self, kind: int, nested: int = 0) -> Any:
        if kind == _STRING:
            return self._strings(1)[0]
        if kind == _ARRAY:
            return self._array(nested)
        return self._number(_dtype_of(kind))

    def _array(self, nested: int) -> list[Any]:
        if nested == _MOST_NESTED:
            raise ValueError(f"arrays in arrays, over {_MOST_NESTED} times")
        kind, count = self._number(np.dtype("<u4")), self._number(np.dtype("<u8"))
        if count > _MOST_ENTRIES:
            raise ValueError(f"an array of {count} entries, at most {_MOST_ENTRIES} are read")
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            return [self._array(nested + 1) for _ in range(count)]
        return self._numbers(_dtype_of(kind), count)

    def _tensor_head(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset of a tensor, as the file has them."""
        (name,) = self._strings(1)
        dimensions = self._number(np.dtype("<u4"))
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        sizes = self._numbers(np.dtype("<u8"), dimensions)
        return (
            name,
            tuple(reversed(sizes)),
            self._number(np.dtype("<u4")),
            self._number(np.dtype("<u8")),
        )

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, offset: int) -> GgufTensor:
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise UnsupportedModelError(
                f"{self._file}: a tensor has type {number}, which is not known: take another "
                "quantisation of the model, such as Q4_K_M or Q8_0"
            ) from None
        weights, size = GGML_QUANT_SIZES[kind]
        if shape[-1] % weights:
            raise ValueError(
                f"tensor {name} of type {kind.name} has {shape[-1]} columns, which are no whole "
                f"number of blocks of {weights}"
            )
        dtype: np.dtype[Any] = _DTYPES.get(kind, _BYTE)
        stored = (*shape[:-1], shape[-1] // weights * size // dtype.itemsize)
        end = offset + prod(stored) * dtype.itemsize
        if end > self._size:
            raise ValueError(f"tensor {name} would end at {end}")
        data = np.frombuffer(self._data, dtype, prod(stored), offset).reshape(stored)
        return GgufTensor(name, kind, shape, self._file, offset, data)


def _dtype_of(kind: int) -> np.dtype[Any]:
    if kind not in _NUMBERS:
        raise ValueError(f"metadata of type {kind}, which is not known")
    return _NUMBERS[kind]


def parts_of(file: Path) -> list[Path]:
    """All files of a model, of which one is given, in their order.

    Raises:
        ModelNotFoundError: some are missing; names them.
    """
    match = _PART.fullmatch(file.name)
    parts = [file]
    if match is not None:
        count = int(match["count"])
        names = (f"{match['name']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1))
        parts = [file.with_name(name) for name in names]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelNotFoundError(
            f"{file.parent} lacks {len(missing)} of the {len(parts)} files of a model: download "
            f"{', '.join(missing)}"
        )
    return parts


def _read(file: Path) -> _Reader:
    try:
        return _Reader(file)
    except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        refuse_lfs_pointer(file)
        raise ModelFileError(
            f"{file} ({file.stat().st_size} bytes) cannot be read as GGUF ({error}): it is cut off "
            "or damaged; download it again"
        ) from error
