"""A safetensors file: its tensors as arrays of the mapped file."""

import json
import mmap
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from inlay.core.errors import ModelFileError
from inlay.core.text_files import refuse_lfs_pointer
from inlay.models.float_arrays import BFLOAT16, FLOAT8, Array

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "BF16": BFLOAT16,
    "F16": np.dtype(np.float16),
    "F8_E4M3": FLOAT8,
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}
"""Those that are read, by their names in files."""

# Pages are not reserved: of a file larger than all memory, too, only some are there at a time.
_MAP_NORESERVE = 0x4000


@dataclass(frozen=True)
class StoredArray:
    """Where a file has a tensor.

    Attributes:
        dtype: its name in files.
        offset: of its first byte in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int


class SafetensorsFile:
    """One file, mapped. Arrays keep the mapping alive.

    Attributes:
        metadata: what its head says besides tensors.
        tensors: what it holds, by name.
    """

    def __init__(self, path: Path) -> None:
        """Read and check its head.

        Raises:
            ModelFileError: it is cut off or damaged, or a pointer of Git LFS.
            OSError: there is no such file.
        """
        self.path = path
        try:
            with safe_open(path, framework="np") as opened:  # compares all of it with the head
                self.metadata: dict[str, str] = opened.metadata() or {}
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                head = json.loads(file.read(size))
                self._mapped = mmap.mmap(
                    file.fileno(),
                    os.fstat(file.fileno()).st_size,
                    flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
        except (SafetensorError, OSError, ValueError) as error:
            refuse_lfs_pointer(path)
            raise ModelFileError(
                f"{path} ({path.stat().st_size} bytes) is cut off or damaged ({error}): delete it "
                "and download it again"
            ) from error
        head.pop("__metadata__", None)
        self.tensors = {
            name: StoredArray(
                about["dtype"], tuple(about["shape"]), 8 + size + about["data_offsets"][0]
            )
            for name, about in head.items()
        }

    def array(self, name: str) -> Array:
        """A tensor, one of `DTYPES`, to be read only; its pages are read when they are touched."""
        stored = self.tensors[name]
        dtype = DTYPES[stored.dtype]
        found = np.frombuffer(self._mapped, dtype, prod(stored.shape), stored.offset)
        return np.require(found, requirements="A").reshape(stored.shape)
