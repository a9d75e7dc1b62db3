"""An ordinary Hugging Face directory of floats as pieces: tensors by rows, under their names."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inlay.core.errors import NotFiniteError
from inlay.core.model_shape import ModelShape
from inlay.models.checkpoint import Checkpoint, Tensors
from inlay.models.conversion.fused import FusedExperts
from inlay.models.conversion.pieces import PIECE_BYTES, Each, Extent, Piece
from inlay.models.conversion.work import read_chunks
from inlay.models.quantized import QuantizedRows, floats_of
from inlay.models.weight_names import expected_tensors, names_of

SHARD_BYTES = 4 * 10**9
INDEX_FILE = "model.safetensors.index.json"
CHECKSUM_FILE = "SHA256SUMS"
_FINGERPRINT = "inlay.source"
_DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}


@dataclass(frozen=True)
class _Tensor:
    """One of the files that are to be."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class FloatProduct:
    """Shards of limited size, their index and checksums. Implements `Product`.

    Matrices become one dtype, whatever they are; what has one dimension (norms, biases, the
    corrections of a router) keeps its dtype, and with it its bits.

    Args:
        tensors: of a model whose experts are `fused` or not; they stay so where makers publish
            both.
        dtype: of matrices.
        shard_bytes: of a file at most, but one tensor is never cut; None: 4 GB.
    """

    def __init__(
        self,
        shape: ModelShape,
        tensors: Checkpoint,
        *,
        fused: bool,
        dtype: torch.dtype = torch.bfloat16,
        shard_bytes: int | None = None,
    ) -> None:
        self._dtype = dtype
        self._transposed = names_of(shape).columns_first
        self._source: Tensors = tensors
        if shape.experts and self._transposed and not fused:
            self._source, fused = FusedExperts(tensors, shape), True
        self._fingerprint = tensors.fingerprint(shape)
        self._shards = _shards(
            [
                self._tensor(one.name, one.shape)
                for one in expected_tensors(shape, fused_experts=fused)
            ],
            shard_bytes or SHARD_BYTES,
        )
        files: dict[str, int] = {}
        self.files: Mapping[str, int] = files
        self.pieces: Sequence[Piece] = [
            piece for name, shard in self._shards.items() for piece in self._cut(name, shard, files)
        ]

    @property
    def identity(self) -> Mapping[str, Any]:
        """As the protocol says."""
        return {
            "target": f"{name_of(self._dtype)} in {len(self._shards)} safetensors",
            "source": self._fingerprint,
        }

    def give_back(self) -> None:
        """As the protocol says."""
        self._source.give_back()

    def seal(self, files: Mapping[str, int], each: Each) -> Mapping[str, bytes]:
        """The index where there are several shards, and the checksums of all."""
        names = list(files)
        digests = each(lambda name: _sha256(files[name], self.files[name]), names)
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
                with safe_open(directory / name, framework="pt") as file:
                    if (file.metadata() or {}).get(_FINGERPRINT) != self._fingerprint:
                        return False
        except (SafetensorError, OSError):
            return False
        return True

    def _tensor(self, name: str, shape: tuple[int, ...]) -> _Tensor:
        dtype = self._dtype if len(shape) > 1 else floats_of(self._source.get(name)).dtype
        return _Tensor(name, shape, dtype)

    def _cut(self, file: str, shard: Sequence[_Tensor], files: dict[str, int]) -> Iterator[Piece]:
        header = _header(shard, self._fingerprint)
        yield Piece(f"the head of {file}", 0, (Extent(file, 0, len(header)),), lambda: (header,))
        at = len(header)
        for tensor in shard:
            rows = tensor.shape[0]
            row_bytes = tensor.size // rows
            step = max(1, PIECE_BYTES // row_bytes)
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

    def _make(self, tensor: _Tensor, rows: slice) -> Sequence[Any]:
        stored = self._source.get(tensor.name, rows)
        values = floats_of(stored)
        if isinstance(stored, QuantizedRows) and self._transposed and values.dim() > 2:
            values = values.transpose(-1, -2)  # quantised experts have rows first
        values = values.to(tensor.dtype).contiguous()
        if not values.isfinite().all():
            raise NotFiniteError("it holds a NaN or an infinity")
        return (values.view(torch.uint8).numpy(),)


def name_of(dtype: torch.dtype) -> str:
    """As config.json names it."""
    return str(dtype).removeprefix("torch.")


def _shards(tensors: Sequence[_Tensor], shard_bytes: int) -> dict[str, list[_Tensor]]:
    """Tensors in their order, cut where a file would become too large, by file name."""
    shards: list[list[_Tensor]] = []
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


def _header(shard: Sequence[_Tensor], fingerprint: str) -> bytes:
    """The begin of a file. Source: the format's description in its README."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt", _FINGERPRINT: fingerprint}}
    at = 0
    for tensor in shard:
        table[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.size],
        }
        at += tensor.size
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _sha256(fd: int, size: int) -> str:
    digest = hashlib.sha256()
    for data in read_chunks(fd, 0, size):
        digest.update(data)
    return digest.hexdigest()
