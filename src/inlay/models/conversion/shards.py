"""Safetensors of limited size as pieces: tensors by rows, one file after another, their index."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from inlay.core.errors import ModelFileError, NotFiniteError
from inlay.models.conversion.pieces import PIECE_BYTES, Each, Extent, Piece
from inlay.models.conversion.work import read_chunks
from inlay.models.float_arrays import Array, bits_of
from inlay.models.safetensors_file import DTYPES, SafetensorsFile

SHARD_BYTES = 4 * 10**9
INDEX_FILE = "model.safetensors.index.json"
CHECKSUM_FILE = "SHA256SUMS"
_FINGERPRINT = "inlay.source"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class ShardTensor:
    """One of the files that are to be.

    Attributes:
        rows_together: pieces begin at multiples of so many rows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows_together: int = 1

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * self.dtype.itemsize


class Shards(ABC):
    """Shards, their index and checksums: all of a `Product` but what it is made from.

    A subclass makes the rows (`make_rows`), when pieces are asked for.

    Args:
        tensors: in their order.
        fingerprint: of what they are made from.
        shard_bytes: of a file at most, but one tensor is never cut; None: 4 GB.
    """

    def __init__(
        self,
        tensors: Sequence[ShardTensor],
        *,
        fingerprint: str,
        shard_bytes: int | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self._shards = _shards(tensors, shard_bytes or SHARD_BYTES)
        files: dict[str, int] = {}
        self.files: Mapping[str, int] = files
        self.pieces: Sequence[Piece] = [
            piece for name, shard in self._shards.items() for piece in self._cut(name, shard, files)
        ]

    @abstractmethod
    def make_rows(self, tensor: ShardTensor, rows: slice) -> Array:
        """Some rows of a tensor, of its dtype."""

    def seal(self, files: Mapping[str, int], each: Each) -> Mapping[str, bytes]:
        """The index where there are several shards, and the checksums of all."""
        names = list(files)
        digests = each(lambda name: sha256(files[name], self.files[name]), names)
        for fd in files.values():
            os.fsync(fd)
        lines = [f"{digest}  {name}\n" for name, digest in zip(names, digests, strict=True)]
        more = {CHECKSUM_FILE: "".join(lines).encode()}
        if len(names) > 1:
            index = {
                "metadata": {
                    "total_size": sum(one.size for shard in self._shards.values() for one in shard)
                },
                "weight_map": {
                    one.name: name for name, shard in self._shards.items() for one in shard
                },
            }
            more[INDEX_FILE] = json.dumps(index, indent=2).encode()
        return more

    def is_in(self, directory: Path) -> bool:
        """As the protocol says."""
        try:
            for name in self.files:
                file = SafetensorsFile(directory / name)
                if file.metadata.get(_FINGERPRINT) != self.fingerprint:
                    return False
        except (ModelFileError, OSError):
            return False
        return True

    def _cut(
        self, file: str, shard: Sequence[ShardTensor], files: dict[str, int]
    ) -> Iterator[Piece]:
        header = _header(shard, self.fingerprint)
        yield Piece(f"the head of {file}", 0, (Extent(file, 0, len(header)),), lambda: (header,))
        at = len(header)
        for tensor in shard:
            rows, together = tensor.shape[0], tensor.rows_together
            row_bytes = tensor.size // rows
            step = max(1, PIECE_BYTES // (row_bytes * together)) * together
            for start in range(0, rows, step):
                stop = min(rows, start + step)
                size = (stop - start) * row_bytes
                yield Piece(
                    name=tensor.name,
                    source_bytes=size,
                    extents=(Extent(file, at, size),),
                    make=partial(self._make, tensor, slice(start, stop)),
                )
                at += size
        files[file] = at

    def _make(self, tensor: ShardTensor, rows: slice) -> Sequence[Any]:
        values = np.ascontiguousarray(self.make_rows(tensor, rows))
        if not np.isfinite(values).all():
            raise NotFiniteError("it holds a NaN or an infinity")
        return (bits_of(values).reshape(-1).view(np.uint8),)


def _shards(tensors: Sequence[ShardTensor], shard_bytes: int) -> dict[str, list[ShardTensor]]:
    """Tensors in their order, cut where a file would become too large, by file name."""
    shards: list[list[ShardTensor]] = []
    room = 0
    for tensor in tensors:
        if tensor.size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= tensor.size
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    return {
        f"model-{number:05d}-of-{len(shards):05d}.safetensors": shard
        for number, shard in enumerate(shards, 1)
    }


def _header(shard: Sequence[ShardTensor], fingerprint: str) -> bytes:
    """The begin of a file. Source: the format's description in its README."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt", _FINGERPRINT: fingerprint}}
    at = 0
    for tensor in shard:
        table[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.size],
        }
        at += tensor.size
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def sha256(fd: int, size: int) -> str:
    """Of the first bytes of an open file, in hex digits."""
    digest = hashlib.sha256()
    for data in read_chunks(fd, 0, size):
        digest.update(data)
    return digest.hexdigest()
