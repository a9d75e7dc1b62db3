"""Packed weights in a file that is mapped, not read.

    with PackedWriter(path, metadata={"model": "..."}) as writer:
        for layer in range(48):
            writer.add_experts(f"{layer}.experts", pack_experts(...))
            writer.add_array(f"{layer}.norm", norm_M)
    file = PackedFile(path)
    file.experts("0.experts"), file.array("0.norm")

Layout (`VERSION`), little-endian: the preamble `_PREAMBLE` at 0; the parts of all entries, each at
a multiple of 4 KiB; the table in JSON (`_Table`) at the end. A part holds the
bytes that kernels read (`docs/kernels.md`), which are the same on every machine. The preamble
carries the file's size and the table's digest and ends with its own digest, the table carries that
of every part.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from inlay.core.errors import ArgumentError, ModelFileError
from inlay.kernels import _backend
from inlay.kernels._linear import LinearWeight
from inlay.kernels._moe import ExpertWeights

VERSION = 2
"""Of panels and file; a file of another version has to be packed again."""

_MAGIC = b"INLAYPKW"
# Magic, version, unused, size of the file, offset of the table, digests of the table and of this.
_PREAMBLE = struct.Struct("<8sIIQQ16s")
_DIGEST_BYTES = 16
_PREAMBLE_BYTES = _PREAMBLE.size + _DIGEST_BYTES
_OS_PAGE = 4096
_ARRAY_DTYPES = ("float32", "uint16", "int8", "uint8", "int32", "int64")


class _Part(msgspec.Struct, frozen=True):
    offset: int
    size: int
    digest: str  # XXH3, 128 bits, in hexadecimal


class _Entry(msgspec.Struct, frozen=True):
    """One weight.

    `linear` has the parts panels; `experts` gate_up, down and perhaps biases; `array` has data.
    """

    kind: str
    format: str  # or the dtype of an array
    shape: list[int]  # linear [N, K], experts [E, M, F]
    parts: dict[str, _Part]


class _Table(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    entries: dict[str, _Entry]


def _digest(data: Any) -> bytes:
    # Finds damage, not forgery: as fast as memory, 25 times as fast as BLAKE2b.
    return xxhash.xxh3_128_digest(data)


class _PartWriter:
    """One part, written front to back."""

    def __init__(self, fd: int, offset: int) -> None:
        self._fd, self._offset, self._size = fd, offset, 0
        self._hash = xxhash.xxh3_128()

    def write(self, values: npt.NDArray[Any]) -> None:
        data = values.data.cast("B")
        self._hash.update(data)
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], self._offset + self._size + done)
        self._size += len(data)

    def done(self) -> _Part:
        return _Part(self._offset, self._size, self._hash.hexdigest())


def _is_name_of(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _open_partial(partial: Path, path: Path) -> int:
    """An empty file that is locked while its writer lives, so a killed one's is known as such."""
    while True:
        fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A writer that ended meanwhile has renamed the file or removed it.
            if _is_name_of(partial, fd):
                os.ftruncate(fd, 0)
                return fd
        except BlockingIOError:
            os.close(fd)
            raise ArgumentError(f"path: another writer is writing {path}; wait for it") from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


class PackedWriter:
    """Writes a file entry by entry; nothing appears at `path` before `close`.

    Use it as a context manager: leaving it closes the file, an exception inside drops it.

    Args:
        path: where the file will be. What is there is replaced at the end, in one step. What a
            killed writer left beside it is removed at once.
        metadata: anything that JSON can hold, e.g. the model's configuration.

    Raises:
        ArgumentError: another writer is writing it.
        OSError: the file cannot be written.

    Cost: as fast as the disk; memory of one expert.
    """

    def __init__(
        self, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None
    ) -> None:
        self._path = Path(path)
        self._metadata = dict(metadata or {})
        self._entries: dict[str, _Entry] = {}
        self._partial = self._path.with_name(f".{self._path.name}.partial")
        self._fd = _open_partial(self._partial, self._path)
        self._end = _PREAMBLE_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def add_linear(self, name: str, weight: LinearWeight) -> None:
        """Append a dense weight."""
        panels = weight.panels()
        part = self._part(panels.nbytes)
        part.write(panels)
        self._add(name, "linear", weight.format, list(weight.shape), {"panels": part})

    def add_experts(self, name: str, experts: ExpertWeights) -> None:
        """Append the experts of a layer; however many shards they have, the file has one."""
        parts: dict[str, _PartWriter] = {}
        for expert in range(experts.num_experts):
            panels = dict(zip(("gate_up", "down"), experts.panels(expert), strict=True))
            for key, values in panels.items():
                if expert == 0:
                    parts[key] = self._part(values.nbytes * experts.num_experts)
                parts[key].write(values)
        biases = experts.biases()
        if biases is not None:
            parts["biases"] = self._part(biases.nbytes)
            parts["biases"].write(biases)
        shape = [experts.num_experts, experts.hidden, experts.intermediate]
        self._add(name, "experts", experts.format, shape, parts)

    def add_array(self, name: str, array: npt.NDArray[Any]) -> None:
        """Append a plain array, e.g. a norm or an embedding table; bf16 as its bits in uint16.

        Raises:
            ArgumentError: its dtype is none of float32, uint16, int8, uint8, int32, int64.
        """
        if array.dtype.name not in _ARRAY_DTYPES:
            raise ArgumentError(
                f"array: must be one of {', '.join(_ARRAY_DTYPES)}, is {array.dtype}"
            )
        part = self._part(array.nbytes)
        if array.size:
            part.write(np.ascontiguousarray(array))
        self._add(name, "array", array.dtype.name, list(array.shape), {"data": part})

    def close(self) -> None:
        """Write the table, flush everything to disk and give the file its name."""
        if self._fd < 0:
            return
        try:
            table = msgspec.json.encode(_Table(self._metadata, self._entries))
            offset = self._end
            size = offset + len(table)
            preamble = _PREAMBLE.pack(_MAGIC, VERSION, 0, size, offset, _digest(table))
            os.ftruncate(self._fd, size)
            for data, at in ((table, offset), (preamble + _digest(preamble), 0)):
                if os.pwrite(self._fd, data, at) != len(data):
                    raise OSError(f"{self._path}: the disk took only a part of the table")
            os.fsync(self._fd)
            self._partial.replace(self._path)
        except BaseException:
            self.abort()
            raise
        self._close_fd()
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def abort(self) -> None:
        """Drop what was written; nothing happens after `close`."""
        if self._fd >= 0:
            self._partial.unlink(missing_ok=True)
            self._close_fd()

    def _close_fd(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _part(self, size: int) -> _PartWriter:
        offset = -(-self._end // _OS_PAGE) * _OS_PAGE
        self._end = offset + size
        return _PartWriter(self._fd, offset)

    def _add(
        self, name: str, kind: str, format: str, shape: list[int], parts: dict[str, _PartWriter]
    ) -> None:
        if name in self._entries:
            raise ArgumentError(f"name: {name!r} is in the file already")
        done = {key: part.done() for key, part in parts.items()}
        self._entries[name] = _Entry(kind, format, shape, done)


class PackedFile:
    """A mapped file of packed weights.

    Weights and arrays borrow the mapping and keep it alive; their pages are read when they are
    first used. Replace such a file, never write into it or shorten it: a process that has it
    mapped would compute with the changed bytes, or die.

    Args:
        path: written by `PackedWriter`.

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
            offset = self._check_preamble(file.read(_PREAMBLE_BYTES), size)
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

    def verify(self) -> None:
        """Compare every part with its digest.

        Raises:
            ModelFileError: a part is damaged; the message names the entry.

        Cost: reads the whole file, as fast as disk or memory gives it.
        """
        for name, entry in self._table.entries.items():
            for key, part in entry.parts.items():
                if _digest(self._bytes(entry, key)).hex() != part.digest:
                    raise self._damaged(f"the bytes of {name!r} ({key}) do not fit their checksum")

    def _damaged(self, reason: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {reason}; pack the model again")

    def _check_preamble(self, data: bytes, size: int) -> int:
        """Offset of the table."""
        if data[: len(_MAGIC)] != _MAGIC[: len(data)] or not data:
            raise ModelFileError(f"{self.path}: is not a file of packed weights")
        if len(data) < _PREAMBLE_BYTES:
            raise self._damaged(f"is truncated: it holds {size} bytes, less than its preamble")
        _, version, _, whole, offset, _ = _PREAMBLE.unpack(data[: _PREAMBLE.size])
        if version != VERSION:
            raise self._damaged(f"has layout version {version}, this Inlay reads {VERSION}")
        if _digest(data[: _PREAMBLE.size]) != data[_PREAMBLE.size :]:
            raise self._damaged("its preamble is damaged")
        if size != whole:
            how = "is truncated" if size < whole else "has bytes added"
            raise self._damaged(f"{how}: it holds {size} bytes of {whole}")
        return int(offset)

    def _check_table(self, data: memoryview) -> _Table:
        *_, digest = _PREAMBLE.unpack(self._memory[: _PREAMBLE.size])
        if _digest(data) != digest:
            raise self._damaged("its table of entries is damaged")
        return msgspec.json.decode(data, type=_Table)

    def _entry(self, name: str, kind: str) -> _Entry:
        entry = self._table.entries.get(name)
        if entry is None or entry.kind != kind:
            what = "nothing" if entry is None else f"{entry.kind}, not {kind},"
            raise ArgumentError(f"name: {self.path} holds {what} under {name!r}")
        return entry

    def _bytes(self, entry: _Entry, key: str = "panels") -> memoryview:
        part = entry.parts[key]
        return memoryview(self._memory)[part.offset : part.offset + part.size]
