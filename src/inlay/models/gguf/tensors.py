"""The tensors of a GGUF file under the names of the makers' files."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from inlay.core.architectures import ARCHITECTURES
from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.models.embedding import BlockEmbedding
from inlay.models.float_arrays import BFLOAT16, Array, to_float32
from inlay.models.gguf.architectures import KEYS_UP, NAMES, ROWS, VALUES_UP
from inlay.models.gguf.config import block_format
from inlay.models.gguf.reader import LINK, GgufFile, GgufTensor
from inlay.models.os_pages import ReadPages
from inlay.models.published.rows import BlockRows, Matrix, QuantizedRows, floats_of, in_turn
from inlay.models.weight_files import Index
from inlay.models.weight_names import NORMS, Expected, layer_parts, names_of

_PIECE_BYTES = 16 << 20  # of a table, one byte a weight: what is taken apart at a time
_GROUP = 32
_HALF_GROUP = np.dtype((np.void, _GROUP // 2))
_GROUP_BYTES = np.dtype((np.void, _GROUP))
_LARGE_BLOCK = 256  # of the K types
_LAYER = re.compile(r"blk\.(\d+)\.")
_IGNORED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_HASH_SAMPLES = 4096
_HASH_SAMPLE_BYTES = 4096

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class _Place:
    """Where a matrix lies.

    Attributes:
        tensor: its name in the file.
        expert: which one of a stack it is; None: it is the whole tensor.
        values: the second tensor of a matrix of latent attention that lies in two.
        in_one_row: makers have it as a matrix of one row.
        offset: makers have it less this.
    """

    tensor: str
    expert: int | None = None
    values: str = ""
    in_one_row: bool = False
    offset: float = 0.0


@dataclass(frozen=True)
class GgufPart:
    """Where a file has a matrix, or a part of one.

    Attributes:
        name: of the tensor.
        kind: its type.
        file, offset: where its bytes begin.
        rows, row_bytes: that it has there.
        take: its values, `[rows, columns]`, from all of the matrix; None: the matrix as it is.
    """

    name: str
    kind: Type
    file: Path
    offset: int
    rows: int
    row_bytes: int
    take: Callable[[Array], Array] | None = None


class GgufTensors:
    """`Tensors` of a GGUF file. What is asked for is read then, one matrix or expert at a time."""

    def __init__(self, directory: Path, shape: ModelShape) -> None:
        """Open the file of a directory that `gguf_directory` made. Raises as `GgufFile`."""
        # Its link leads to the name that says which part of a model it is.
        file = GgufFile((directory / LINK).readlink())
        # Not all of the file: its vocabulary takes some 20 MiB.
        self._files, self._tensors, self._shape = file.files, file.tensors, shape
        self._row = ROWS[file.metadata["general.architecture"]]
        self._names = {**NAMES, **self._row.names}
        self._places = _places(shape, self._names, file.tensors)
        self._pages = ReadPages()

    @property
    def files(self) -> list[Path]:
        """All parts, in order."""
        return self._files

    def holds(self, name: str) -> bool:
        """Whether it is there."""
        return name in self._places and self._places[name].tensor in self._tensors

    def is_bfloat16(self, name: str) -> bool:
        """Whether bfloat16 holds as much as the file does of a tensor."""
        kind = self._tensors[self._places[name].tensor].kind
        return kind not in (Type.F32, Type.F16)

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """As `WeightFiles.check`."""
        file = self._files[0]
        known = set(_IGNORED)
        for one in expected:
            for there, size in self._stored(one):
                known.add(there)
                tensor = self._tensors.get(there)
                if tensor is None:
                    raise ModelFileError(
                        f"{file} lacks {there}: the download is incomplete, or the file is damaged"
                    )
                if tensor.shape != size:
                    raise ModelFileError(
                        f"{file}: {there} is {list(tensor.shape)}, and its metadata ask for "
                        f"{list(size)}"
                    )
        known |= {self._places[one].tensor for one in optional if one in self._places}
        surplus = [name for name in self._tensors if name not in known]
        if surplus := [name for name in surplus if not self._is_left_out(name)]:
            raise UnsupportedModelError(
                f"{file} holds {surplus[0]} ({len(surplus)} tensors more than it should), which "
                "Inlay does not know: take the model's *.safetensors"
            )

    def _stored(self, one: Expected) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors of which a matrix is made, and their shapes."""
        place, shape = self._places[one.name], self._shape
        if place.expert is not None:
            return [(place.tensor, (shape.experts, *one.shape))]
        if place.in_one_row:
            # The converter leaves the row away, or not.
            there = self._tensors.get(place.tensor)
            is_row = there is not None and len(there.shape) == 1
            return [(place.tensor, one.shape[1:] if is_row else one.shape)]
        if not place.values or shape.mla is None:
            return [(place.tensor, one.shape)]
        mla = shape.mla
        return [
            (place.tensor, (shape.heads, mla.kv_rank, mla.nope_dim)),
            (place.values, (shape.heads, mla.value_dim, mla.kv_rank)),
        ]

    def _is_left_out(self, name: str) -> bool:
        """Layers that draft tokens, and the older form of a matrix beside the newer."""
        layer = _LAYER.match(name)
        drafts = layer is not None and int(layer[1]) >= self._shape.layers
        return drafts or ".attn_kv_b." in name

    def parts(self, name: str) -> list[GgufPart]:
        """Where a matrix lies, in whole: the way back from what `get` gives."""
        place, mla = self._places[name], self._shape.mla
        if not place.values or mla is None:
            order = self._order(place.tensor)
            back = None if order is None else order.argsort()
            return [self._part(place, None if back is None else lambda matrix: matrix[back])]

        def heads(matrix: Array) -> Array:
            return matrix.reshape(self._shape.heads, -1, mla.kv_rank)

        def keys(matrix: Array) -> Array:
            return heads(matrix)[:, : mla.nope_dim].swapaxes(1, 2).reshape(-1, mla.nope_dim)

        def values(matrix: Array) -> Array:
            return heads(matrix)[:, mla.nope_dim :].reshape(-1, mla.kv_rank)

        found = [self._part(_Place(place.tensor), keys), self._part(_Place(place.values), values)]
        layer = _LAYER.match(place.tensor)
        older = self._names["kv_up"].format(layer=layer[1] if layer else "")
        return found + [self._part(_Place(older)) for _ in {older} & self._tensors.keys()]

    def _part(self, place: _Place, take: Callable[[Array], Array] | None = None) -> GgufPart:
        tensor = self._tensors[place.tensor]
        count = self._shape.experts if place.expert is not None else 1
        rows = prod(tensor.shape[:-1]) // count
        size = tensor.data.nbytes // count
        return GgufPart(
            name=place.tensor,
            kind=tensor.kind,
            file=tensor.file,
            offset=tensor.offset + (place.expert or 0) * size,
            rows=rows,
            row_bytes=size // rows,
            take=take,
        )

    def _order(self, tensor: str) -> Array | None:
        """Rows of the file in the order of the makers', where that is another."""
        heads = {"attn_q.": self._shape.heads, "attn_k.": self._shape.kv_heads}
        paired = [count for part, count in heads.items() if part in tensor]
        if not self._row.paired or not paired:
            return None
        return _halves(self._tensors[tensor].shape[0], paired[0])

    def view(self, name: str) -> Matrix:
        """As `get`, since nothing but its bytes could be viewed; the embedding as floats."""
        place = self._places[name]
        if place.tensor == self._names["embedding"] and self.is_bfloat16(name):
            return self._table(place.tensor)
        return self.get(name)

    def embedding(self, name: str) -> BlockEmbedding:
        """As `WeightFiles.embedding`."""
        tensor = self._tensors[self._places[name].tensor]
        columns = tensor.shape[-1]

        def decode(data: Bytes) -> Array:
            return floats_of(_decoded(tensor, data))

        return BlockEmbedding(tensor.data, columns, decode)

    def give_back(self) -> None:
        """As `WeightFiles.give_back`."""
        self._pages.give_back()

    def get(self, name: str, index: Index = None) -> Matrix:
        """The tensor as floats, or its codes where kernels hold such; all rows or some."""
        assert not isinstance(index, int), "experts have names of their own here"
        place = self._places[name]
        if (rows := self._order(place.tensor)) is not None:
            return self._read(place.tensor, place.expert)[rows if index is None else rows[index]]
        if place.values:
            keys, values = (floats_of(self._read(part)) for part in (place.tensor, place.values))
            whole = np.concatenate((keys.swapaxes(1, 2), values), axis=1)
            whole = whole.reshape(-1, whole.shape[-1])
            return whole if index is None else whole[index]
        if place.in_one_row:
            return floats_of(self._read(place.tensor)).reshape(1, -1)[index or slice(None)]
        if place.offset:
            return floats_of(self._read(place.tensor, rows=index)) - np.float32(place.offset)
        return self._read(place.tensor, place.expert, index)

    def _table(self, name: str) -> Array:
        """Rows in bfloat16, made some at a time: float32 of all would be twice that."""
        count, columns = self._tensors[name].shape
        table = np.empty((count, columns), BFLOAT16)
        step = max(1, _PIECE_BYTES // columns)
        for start in range(0, count, step):
            piece = slice(start, min(count, start + step))
            table[piece] = floats_of(self._read(name, rows=piece))
        return table

    def _read(self, name: str, expert: int | None = None, rows: slice | None = None) -> Matrix:
        tensor = self._tensors[name]
        data = tensor.data if expert is None else tensor.data[expert]
        data = data if rows is None else data[rows]
        try:
            self._pages.bring_in(data.ctypes.data, data.nbytes)
        except OSError as error:
            raise ModelFileError(
                f"{self._files[0]}: tensor {name} cannot be read ({error}): download the file again"
            ) from error
        return _decoded(tensor, data)

    def fingerprint(self, shape: ModelShape) -> str:
        """As that of `WeightFiles`: sizes, heads of the files, and samples of their data."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps(asdict(shape), sort_keys=True).encode())
        for file in self._files:
            size = file.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            with file.open("rb") as stream:
                for i in range(_HASH_SAMPLES):
                    stream.seek(size * i // _HASH_SAMPLES)
                    digest.update(stream.read(_HASH_SAMPLE_BYTES))
        return digest.hexdigest()


def _places(
    shape: ModelShape, patterns: Mapping[str, str], tensors: Mapping[str, GgufTensor]
) -> dict[str, _Place]:
    """Where each of the makers' names lies."""
    row = names_of(shape)
    names, places = row.names, dict[str, _Place]()
    offset = ARCHITECTURES[shape.architecture].norm_offset
    there = [layer_parts(shape, layer).keys() | row.stacked.keys() for layer in range(shape.layers)]
    for part, pattern in patterns.items():
        if part.startswith("expert_"):
            for layer in shape.sparse_layers:
                for expert in range(shape.experts):
                    name = names[part].format(layer=layer, expert=expert)
                    places[name] = _Place(pattern.format(layer=layer), expert)
            continue
        less = offset if part in NORMS else 0.0
        if "{layer}" not in pattern:
            places[names[part]] = _Place(pattern, offset=less)
            continue
        for layer in range(shape.layers):
            if part not in there[layer]:
                continue
            in_one_row = part == "shared_score" or part in row.in_one_row
            place = _Place(pattern.format(layer=layer), in_one_row=in_one_row, offset=less)
            split = KEYS_UP.format(layer=layer)
            if part == "kv_up" and split in tensors:
                place = _Place(split, values=VALUES_UP.format(layer=layer))
            places[names[part].format(layer=layer)] = place
    return places


def _halves(rows: int, heads: int) -> Array:
    """Rows of pairs side by side, in the order of halves."""
    numbers = np.arange(rows).reshape(heads, -1, 2)
    return numbers.swapaxes(1, 2).reshape(-1)


def _decoded(tensor: GgufTensor, data: Bytes) -> Matrix:
    """Some rows of a tensor: their blocks or codes where kernels hold such, else floats."""
    held = block_format(tensor.kind)
    if held is None:
        return _taken_apart(tensor, data)
    return BlockRows(held, np.asarray(data), tensor.shape[-1], partial(_taken_apart, tensor))


def _taken_apart(tensor: GgufTensor, data: Bytes) -> Array | QuantizedRows:
    read = _CODES.get(tensor.kind)
    if read is not None:
        return read(data, tensor.shape[-1])
    return _floats(tensor.name, data, tensor.kind)


def _floats(name: str, data: Bytes, kind: Type) -> Array:
    if kind is Type.BF16:
        return np.array(data).view(BFLOAT16)
    if kind is Type.F16:
        return np.array(data)
    try:
        values = gguf.dequantize(data, kind)
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"tensor {name} has the type {kind.name}, which is not read"
        ) from error
    return np.array(values, np.float32)


def _q8_0(data: Bytes, columns: int) -> QuantizedRows:
    blocks = _blocks(data, columns, 34)
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return _rows("int8:g32", codes, _float16(blocks), columns)


def _q5_0(data: Bytes, columns: int) -> QuantizedRows:
    """Its codes have 5 bits, and scales as those of `_q8_0`."""
    blocks = _blocks(data, columns, 22)
    codes = _nibbles(blocks[..., 6:], _HALF_GROUP)
    # Bit i of four bytes is the fifth of code i.
    fifth = np.unpackbits(np.ascontiguousarray(blocks[..., 2:6]), axis=-1, bitorder="little")
    codes |= (fifth << 4).view(np.int8)
    codes -= 16
    return _rows("int8:g32", codes, _float16(blocks), columns)


def _q4_0(data: Bytes, columns: int) -> QuantizedRows:
    blocks = _blocks(data, columns, 18)
    integers = _nibbles(blocks[..., 2:], _HALF_GROUP)
    integers -= 8
    return _rows("int4:g32", integers, _float16(blocks), columns)


def _q4_1(data: Bytes, columns: int) -> QuantizedRows:
    blocks = _blocks(data, columns, 20)
    scales, minimums = (to_float32(_float16(blocks[..., at : at + 2])) for at in (0, 2))
    return _lines(_nibbles(blocks[..., 4:], _HALF_GROUP), scales, minimums, columns)


def _q4_k(data: Bytes, columns: int) -> QuantizedRows:
    blocks = _blocks(data, columns, 144, _LARGE_BLOCK)
    # The low halves of 32 bytes are one group, the high ones the next.
    codes = _nibbles(blocks[..., 16:], _GROUP_BYTES)
    # 6 bits for each of eight scales, then of eight minimums: of the first four of both the low
    # bits of a byte each; what those leave and four more bytes have the last four.
    packed = np.ascontiguousarray(blocks[..., 4:16]).reshape(*blocks.shape[:-1], 3, 4)
    scales, minimums, rest = (packed[..., i, :] for i in range(3))
    whole = (
        (scales & 63, rest & 15 | scales >> 6 << 4),
        (minimums & 63, rest >> 4 | minimums >> 6 << 4),
    )
    steps, falls = (
        to_float32(_float16(blocks[..., at : at + 2]))[..., None]
        * to_float32(np.concatenate(parts, axis=-1))
        for at, parts in zip((0, 2), whole, strict=True)
    )
    groups = (*steps.shape[:-2], -1)
    return _lines(codes, steps.reshape(groups), -falls.reshape(groups), columns)


def _lines(codes: Bytes, scales: Array, minimums: Array, columns: int) -> QuantizedRows:
    """Weights `minimum + scale * code`."""
    by_row = codes.reshape(*scales.shape[:-1], columns)
    return QuantizedRows("uint4:g32", by_row, in_turn(scales, minimums), _GROUP, columns)


def _nibbles(packed: Bytes, half: np.dtype[Any]) -> Bytes:
    """Codes: the low halves of so many bytes, then the high ones. Moved as wholes: byte by byte it
    would take most of the time of loading.
    """
    packed = np.ascontiguousarray(packed.view(half)).view(np.uint8)
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] // half.itemsize, 2), half)
    codes[..., 0] = (packed & 15).view(half)
    codes[..., 1] = (packed >> 4).view(half)
    integers: Bytes = codes.reshape(*packed.shape[:-1], -1).view(np.int8)
    return integers


def _mxfp4(data: Bytes, columns: int) -> QuantizedRows:
    blocks = _blocks(data, columns, 17)
    return _rows("mxfp4", _neighbours(blocks[..., 1:]), blocks[..., 0].copy(), columns)


def _blocks(data: Bytes, columns: int, size: int, weights: int = _GROUP) -> Bytes:
    return np.asarray(data).view(np.uint8).reshape(*data.shape[:-1], columns // weights, size)


def _neighbours(packed: Bytes) -> Bytes:
    """Two codes to a byte. The low halves are a group's first sixteen, the high ones the others:
    neighbours share a byte here.
    """
    values = np.concatenate((packed & 15, packed >> 4), axis=-1)
    codes: Bytes = values[..., 0::2] | values[..., 1::2] << 4
    return codes


def _float16(blocks: Bytes) -> Array:
    return np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]


def _rows(weight_format: str, codes: Any, scales: Array, columns: int) -> QuantizedRows:
    by_row = codes.reshape(*codes.shape[:-2], -1)
    return QuantizedRows(weight_format, by_row, scales, _GROUP, columns)


_CODES: dict[Type, Callable[[Bytes, int], QuantizedRows]] = {
    Type.Q8_0: _q8_0,
    Type.Q5_0: _q5_0,
    Type.Q4_0: _q4_0,
    Type.Q4_1: _q4_1,
    Type.Q4_K: _q4_k,
    Type.MXFP4: _mxfp4,
}
