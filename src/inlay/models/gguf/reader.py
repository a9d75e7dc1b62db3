"""A GGUF file, or the parts of one: metadata and tensors, mapped. Loads no torch.

The format's own library reads it. Source: the GGUF specification of ggml.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, ReaderTensor
from numpy.typing import DTypeLike, NDArray

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError

LINK = "model.gguf"
"""The file, in a directory that `gguf_directory` made."""

_VERSIONS = (2, 3)
_MOST_ENTRIES = 4 << 20  # of an array; vocabularies have some hundred thousand
_UNKNOWN_TYPE = re.compile(rf"(\d+)\)? is not a valid {GGMLQuantizationType.__name__}")
_PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufFile:
    """What one or several files hold.

    Attributes:
        files: all parts, in order.
        metadata: by key; values as Python has them.
        tensors: by name.
        file_of: the part that holds a tensor, by its name.
    """

    def __init__(self, file: Path) -> None:
        """Map a file, and those that belong to it (`-00001-of-00003`).

        Raises:
            ModelNotFoundError: there is no such file, or a part of it is missing.
            ModelFileError: it is cut off or damaged.
            UnsupportedModelError: it is of a version, or has a tensor of a type, that is not known.
        """
        self.files = _parts_of(file)
        readers = [_read(part) for part in self.files]
        self.metadata: Mapping[str, Any] = readers[0].metadata
        self.tensors: Mapping[str, ReaderTensor] = {
            tensor.name: tensor for reader in readers for tensor in reader.tensors
        }
        self.file_of: Mapping[str, Path] = {
            tensor.name: part
            for part, reader in zip(self.files, readers, strict=True)
            for tensor in reader.tensors
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


class _Reader(GGUFReader):
    """Believes no size that the file does not have: the library would take what is behind the end
    for values of no bytes, and go on for as many as are announced.

    Attributes:
        metadata: as `GgufFile` has them.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.metadata: Mapping[str, Any] = {
            name: field.contents()
            for name, field in self.fields.items()
            if not name.startswith("GGUF.")
        }

    def _get(
        self, offset: int, dtype: DTypeLike, count: int = 1, override_order: Any = None
    ) -> NDArray[Any]:
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"what lies at {offset} would end at {end}")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            count = int(self._get(orig_offs + 4, np.uint64)[0])
            if count > _MOST_ENTRIES:
                raise ValueError(f"an array of {count} entries, at most {_MOST_ENTRIES} are read")
        return super()._get_field_parts(orig_offs, raw_type)


def _parts_of(file: Path) -> list[Path]:
    match = _PART.fullmatch(file.name)
    parts = [file]
    if match is not None:
        count = int(match["count"])
        names = (f"{match['name']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1))
        parts = [file.with_name(name) for name in names]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelNotFoundError(
            f"{file.parent} lacks {missing[0]} ({len(missing)} of {len(parts)} files): download "
            "the model again"
        )
    return parts


def _read(file: Path) -> _Reader:
    with file.open("rb") as stream:
        head = stream.read(8)
    version = int.from_bytes(head[4:], "little")
    if head[:4] == b"GGUF" and len(head) == 8 and version not in _VERSIONS:
        raise UnsupportedModelError(
            f"{file} is GGUF of version {version}; read are {_VERSIONS[0]} and {_VERSIONS[1]}: "
            "take a file that was made with a current llama.cpp, or the model's *.safetensors"
        )
    try:
        return _Reader(file)
    except (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        if unknown := _UNKNOWN_TYPE.search(str(error)):
            raise UnsupportedModelError(
                f"{file}: a tensor has type {unknown[1]}, which is not known: take another "
                "quantisation of the model, such as Q4_K_M or Q8_0"
            ) from error
        raise ModelFileError(
            f"{file} ({file.stat().st_size} bytes) cannot be read as GGUF ({error}): it is cut off "
            "or damaged; download it again"
        ) from error
