"""A file of packed weights as pieces: experts one by one, other matrices by rows."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inlay import kernels
from inlay.core.errors import ModelFileError
from inlay.core.model_shape import ModelShape
from inlay.models.conversion.pieces import PIECE_BYTES, Each, Extent, Piece
from inlay.models.float_arrays import BFLOAT16, bits_of, to_float32
from inlay.models.formats import part_formats, stored_bytes
from inlay.models.native_ops import NativeOps
from inlay.models.ops import Array
from inlay.models.packed_entries import (
    Entry,
    ExpertsEntry,
    HeadsEntry,
    LinearEntry,
    TableEntry,
    VectorEntry,
    packed_entries,
)
from inlay.models.packed_metadata import (
    PACKED_FILE,
    PackedMetadata,
    packed_metadata,
    plain_shape,
)
from inlay.models.published.rows import Matrix, floats_of
from inlay.models.tensor_weights import TensorWeights
from inlay.models.weight_names import layer_parts
from inlay.models.weights import OpenWeights


class PackedProduct:
    """`weights.inlay` of an open checkpoint. Implements `Product`.

    Args:
        opened: for the CPU kernels, of tensors, which `source` gives.
    """

    def __init__(self, shape: ModelShape, opened: OpenWeights, source: TensorWeights) -> None:
        self._shape, self._source, self._ops = shape, source, NativeOps()
        self._float_dtype = opened.float_dtype
        self._metadata = PackedMetadata(
            plain_shape(shape), opened.weight_format, opened.float_dtype, opened.fingerprint
        )
        self._layout = kernels.PackedLayout(asdict(self._metadata))
        self._expert_bytes, self._rest_bytes = _stored_bytes(shape, opened.float_dtype)
        formats = part_formats(shape, opened.weight_format, opened.float_dtype)
        self.pieces: Sequence[Piece] = [
            piece
            for name, entry in packed_entries(shape, formats).items()
            for piece in self._cut(name, entry)
        ]
        self.files: Mapping[str, int] = {PACKED_FILE: self._layout.end}

    @property
    def identity(self) -> Mapping[str, Any]:
        """As the protocol says."""
        about = self._metadata
        return {
            "target": f"packed {kernels.PackedLayout.VERSION}",
            "source": about.fingerprint,
            "weight_format": about.weight_format,
        }

    def give_back(self) -> None:
        """As the protocol says."""
        self._source.give_back()

    def seal(self, files: Mapping[str, int], each: Each) -> Mapping[str, bytes]:
        """Checksums and table."""
        self._layout.seal(files[PACKED_FILE], each)
        os.fsync(files[PACKED_FILE])
        return {}

    def is_in(self, directory: Path) -> bool:
        """As the protocol says."""
        try:
            return packed_metadata(kernels.PackedFile(directory / PACKED_FILE)) == self._metadata
        except (ModelFileError, OSError):
            return False

    def _cut(self, name: str, entry: Entry) -> Iterator[Piece]:
        match entry:
            case TableEntry():
                yield from self._table(name, entry)
            case VectorEntry():
                yield self._vector(name, entry)
            case LinearEntry():
                yield from self._linear(name, entry)
            case HeadsEntry():
                yield self._heads(name, entry)
            case ExpertsEntry():
                yield from self._experts(name, entry)

    def _table(self, name: str, entry: TableEntry) -> Iterator[Piece]:
        dtype = "uint16" if self._float_dtype == "bfloat16" else "float32"
        place = self._layout.add_array(name, dtype, (entry.rows, entry.columns))["data"]
        row_bytes = place.size // entry.rows
        for start, stop in _ranges(entry.rows, row_bytes):
            yield Piece(
                name=f"the embedding, rows {start} to {stop}",
                source_bytes=(stop - start) * row_bytes,
                extents=(
                    Extent(
                        PACKED_FILE, place.offset + start * row_bytes, (stop - start) * row_bytes
                    ),
                ),
                make=partial(self._make_table, slice(start, stop)),
            )

    def _make_table(self, rows: slice) -> Sequence[Array]:
        values = floats_of(self._source.rows("embedding", 0, rows))
        held = BFLOAT16 if self._float_dtype == "bfloat16" else np.float32
        return (np.ascontiguousarray(bits_of(values.astype(held, copy=False))),)

    def _vector(self, name: str, entry: VectorEntry) -> Piece:
        place = self._layout.add_array(name, "float32", (entry.size,))["data"]
        return Piece(
            name=f"{entry.part} of layer {entry.layer}",
            source_bytes=place.size // 2,
            extents=(Extent(PACKED_FILE, place.offset, place.size),),
            make=lambda: (self._source.vector(entry.part, entry.layer),),
        )

    def _linear(self, name: str, entry: LinearEntry) -> Iterator[Piece]:
        place = self._layout.add_linear(name, entry.rows, entry.columns, entry.format)["panels"]
        stored = self._rest_bytes
        for start, stop in _ranges(entry.rows, int(entry.columns * stored) + 1):
            at = kernels.linear_bytes(start, entry.columns, entry.format)
            size = kernels.linear_bytes(stop - start, entry.columns, entry.format)
            yield Piece(
                name=f"{', '.join(entry.parts)} of layer {entry.layer}",
                source_bytes=int((stop - start) * entry.columns * stored),
                extents=(Extent(PACKED_FILE, place.offset + at, size),),
                make=partial(self._make_linear, entry, start, stop),
            )
        if entry.bias:
            place = self._layout.add_array(f"{name}.bias", "float32", (entry.rows,))["data"]
            yield Piece(
                name=f"biases of {', '.join(entry.parts)} of layer {entry.layer}",
                source_bytes=place.size // 2,
                extents=(Extent(PACKED_FILE, place.offset, place.size),),
                make=lambda: (self._make_bias(entry),),
            )

    def _make_linear(self, entry: LinearEntry, start: int, stop: int) -> Sequence[Array]:
        parts = list(self._stacked(entry, start, stop))
        (packed,) = self._ops.pack_linear(parts, (), entry.format).weights
        return (packed.panels(),)

    def _stacked(self, entry: LinearEntry, start: int, stop: int) -> Iterator[Matrix]:
        """Rows of the parts that lie one above the other."""
        shape = self._shape
        sizes = layer_parts(shape, entry.layer)
        for part in entry.parts:
            count = sizes[part][0] if part in sizes else shape.vocab
            first, last = max(0, start), min(count, stop)
            if first < last:
                yield self._source.rows(part, entry.layer, slice(first, last))
            start, stop = start - count, stop - count

    def _make_bias(self, entry: LinearEntry) -> Array:
        return self._ops.vector(
            np.concatenate(
                [to_float32(self._source.bias(part, entry.layer)) for part in entry.parts]
            )
        )

    def _heads(self, name: str, entry: HeadsEntry) -> Piece:
        place = self._layout.add_linear(name, entry.rows, entry.columns, entry.format)["panels"]
        size = entry.rows * entry.columns * self._rest_bytes
        return Piece(
            name=f"kv_up of layer {entry.layer}",
            source_bytes=int(size),
            extents=(Extent(PACKED_FILE, place.offset, place.size),),
            make=lambda: (self._make_heads(entry),),
        )

    def _make_heads(self, entry: HeadsEntry) -> Array:
        heads = self._source.heads(entry.part, entry.layer)
        return self._ops.pack_heads(heads, entry.format).panels()

    def _experts(self, name: str, entry: ExpertsEntry) -> Iterator[Piece]:
        hidden, width, count = entry.hidden, entry.width, entry.count
        parts = self._layout.add_experts(
            name, count, hidden, width, entry.format, biases=entry.biases
        )
        stored = self._rest_bytes if entry.shared else self._expert_bytes
        for expert in range(count):
            which = "the shared experts" if entry.shared else f"expert {expert}"
            yield Piece(
                name=f"{which} of layer {entry.layer}",
                source_bytes=int(3 * hidden * width * stored),
                extents=tuple(
                    Extent(
                        PACKED_FILE, part.offset + expert * part.size // count, part.size // count
                    )
                    for part in parts.values()
                ),
                make=partial(self._make_expert, entry, expert),
            )

    def _make_expert(self, entry: ExpertsEntry, expert: int) -> Sequence[Array]:
        source, layer = self._source, entry.layer
        one = source.shared(layer) if entry.shared else source.expert(layer, expert)
        packed = self._ops.new_experts(
            1, entry.hidden, entry.width, entry.format, biases=entry.biases
        )
        self._ops.set_expert(packed, 0, one)
        biases = packed.biases()
        return (*packed.panels(0), *(() if biases is None else (biases,)))


def _ranges(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Rows in steps of whole panels."""
    step = kernels.head_rows(max(1, PIECE_BYTES // row_bytes))
    return ((start, min(rows, start + step)) for start in range(0, rows, step))


def _stored_bytes(shape: ModelShape, float_dtype: str) -> tuple[float, float]:
    """Bytes of a weight in the source's files: of routed experts, and of the rest, about."""
    floats = "float16" if shape.dtype == "float16" else float_dtype
    experts, rest, _, _ = stored_bytes(shape, floats)
    return experts, rest
