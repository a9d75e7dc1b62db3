"""Packed weights in a file that is mapped, not read.

    file = PackedFile(path)
    file.experts("0.experts"), file.array("0.norm")

Layout (`VERSION`), little-endian: the preamble `PREAMBLE` at 0; the parts of all entries, each at
a multiple of 4 KiB; the table in JSON (`Table`) at the end. A part holds the
bytes that kernels read (`docs/kernels.md`), which are the same on every machine. The preamble
carries the file's size and the table's digest and ends with its own digest, the table carries that
of every part. `PackedLayout` writes it.
"""

import mmap
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from inlay.core.errors import ArgumentError, ModelFileError
from inlay.kernels import _backend
from inlay.kernels._linear import LinearWeight
from inlay.kernels._moe import ExpertWeights
from inlay.kernels._packed_layout import (
    MAGIC,
    PREAMBLE,
    PREAMBLE_BYTES,
    VERSION,
    Entry,
    Table,
    digest_of,
)


class PackedFile:
    """A mapped file of packed weights.

    Weights and arrays borrow the mapping and keep it alive; their pages are read when they are
    first used. Replace such a file, never write into it or shorten it: a process that has it
    mapped would compute with the changed bytes, or die.

    Args:
        path: written by `PackedLayout`.

    Raises:
        ModelFileError: it is no such file, of another version, truncated, or its preamble or table
            is damaged; the message says which. Use `verify` to check the weights too.
        OSError: it cannot be opened.

    Cost: reads preamble and table only.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            offset = self._check_preamble(file.read(PREAMBLE_BYTES), size)
            self._memory = mmap.mmap(
                file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ
            )
        self._table = self._check_table(memoryview(self._memory)[offset:])

    @property
    def metadata(self) -> dict[str, Any]:
        """What the writer was given."""
        return self._table.metadata

    @property
    def names(self) -> list[str]:
        """Names of all entries, in the order they were written."""
        return list(self._table.entries)

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self._memory)

    def linear(self, name: str) -> LinearWeight:
        """A dense weight; it cannot be changed."""
        entry = self._entry(name, "linear")
        n, k = entry.shape
        weight: LinearWeight = _backend.ops.map_linear(n, k, entry.format, self._bytes(entry))
        return weight

    def experts(self, name: str) -> ExpertWeights:
        """The experts of a layer, in one shard; they cannot be changed."""
        entry = self._entry(name, "experts")
        num_experts, hidden, intermediate = entry.shape
        biases = self._bytes(entry, "biases") if "biases" in entry.parts else None
        experts: ExpertWeights = _backend.ops.map_experts(
            num_experts,
            hidden,
            intermediate,
            entry.format,
            self._bytes(entry, "gate_up"),
            self._bytes(entry, "down"),
            biases,
        )
        return experts

    def array(self, name: str) -> npt.NDArray[Any]:
        """A plain array, read-only."""
        entry = self._entry(name, "array")
        return np.frombuffer(self._bytes(entry, "data"), entry.format).reshape(entry.shape)

    def parts(self, name: str) -> list[npt.NDArray[np.uint8]]:
        """The bytes of an entry, part by part; nothing is read before they are used.

        Raises:
            ArgumentError: there is no such entry.
        """
        if name not in self._table.entries:
            raise ArgumentError(f"name: {self.path} holds nothing under {name!r}")
        entry = self._table.entries[name]
        return [np.frombuffer(self._bytes(entry, key), np.uint8) for key in entry.parts]

    def verify(self) -> None:
        """Compare every part with its digest.

        Raises:
            ModelFileError: a part is damaged; the message names the entry.

        Cost: reads the whole file, as fast as disk or memory gives it.
        """
        for name, entry in self._table.entries.items():
            for key, part in entry.parts.items():
                if digest_of(self._bytes(entry, key)).hex() != part.digest:
                    raise self._damaged(f"the bytes of {name!r} ({key}) do not fit their checksum")

    def _damaged(self, reason: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {reason}; convert the model again")

    def _check_preamble(self, data: bytes, size: int) -> int:
        """Offset of the table."""
        if data[: len(MAGIC)] != MAGIC[: len(data)] or not data:
            raise ModelFileError(f"{self.path}: is not a file of packed weights")
        if len(data) < PREAMBLE_BYTES:
            raise self._damaged(f"is truncated: it holds {size} bytes, less than its preamble")
        _, version, _, whole, offset, _ = PREAMBLE.unpack(data[: PREAMBLE.size])
        if version != VERSION:
            raise self._damaged(f"has layout version {version}, this Inlay reads {VERSION}")
        if digest_of(data[: PREAMBLE.size]) != data[PREAMBLE.size :]:
            raise self._damaged("its preamble is damaged")
        if size != whole:
            how = "is truncated" if size < whole else "has bytes added"
            raise self._damaged(f"{how}: it holds {size} bytes of {whole}")
        return int(offset)

    def _check_table(self, data: memoryview) -> Table:
        *_, digest = PREAMBLE.unpack(self._memory[: PREAMBLE.size])
        if digest_of(data) != digest:
            raise self._damaged("its table of entries is damaged")
        return msgspec.json.decode(data, type=Table)

    def _entry(self, name: str, kind: str) -> Entry:
        entry = self._table.entries.get(name)
        if entry is None or entry.kind != kind:
            what = "nothing" if entry is None else f"{entry.kind}, not {kind},"
            raise ArgumentError(f"name: {self.path} holds {what} under {name!r}")
        return entry

    def _bytes(self, entry: Entry, key: str = "panels") -> memoryview:
        part = entry.parts[key]
        return memoryview(self._memory)[part.offset : part.offset + part.size]
