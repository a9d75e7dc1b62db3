"""The tensors of a GGUF file under the names of the makers' files."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.models.gguf.reader import GgufFile
from inlay.models.quantized import Matrix, QuantizedRows, floats_of
from inlay.models.weight_names import Expected, names_of

_GROUP = 32
# By part of the decoder. Experts lie in one tensor for each matrix.
_NAMES = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "attention_norm": "blk.{layer}.attn_norm.weight",
    "q": "blk.{layer}.attn_q.weight",
    "k": "blk.{layer}.attn_k.weight",
    "v": "blk.{layer}.attn_v.weight",
    "output": "blk.{layer}.attn_output.weight",
    "q_bias": "blk.{layer}.attn_q.bias",
    "k_bias": "blk.{layer}.attn_k.bias",
    "v_bias": "blk.{layer}.attn_v.bias",
    "output_bias": "blk.{layer}.attn_output.bias",
    "q_norm": "blk.{layer}.attn_q_norm.weight",
    "k_norm": "blk.{layer}.attn_k_norm.weight",
    "mlp_norm": "blk.{layer}.ffn_norm.weight",
    "gate": "blk.{layer}.ffn_gate.weight",
    "up": "blk.{layer}.ffn_up.weight",
    "down": "blk.{layer}.ffn_down.weight",
    "router": "blk.{layer}.ffn_gate_inp.weight",
    "expert_gate": "blk.{layer}.ffn_gate_exps.weight",
    "expert_up": "blk.{layer}.ffn_up_exps.weight",
    "expert_down": "blk.{layer}.ffn_down_exps.weight",
}
# The converter of these puts the two of a rotated pair side by side.
_PAIRED = ("llama", "mixtral")
_IGNORED = ("rope_freqs.weight",)
_HASH_SAMPLES = 4096
_HASH_SAMPLE_BYTES = 4096

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class GgufTensors:
    """`Tensors` of a GGUF file. What is asked for is read then, one matrix or expert at a time."""

    def __init__(self, file: Path, shape: ModelShape) -> None:
        """Raises as `GgufFile`."""
        self._file, self._shape = GgufFile(file), shape
        self._places = _places(shape)

    def holds(self, name: str) -> bool:
        """Whether it is there."""
        return name in self._places and self._places[name][0] in self._file.tensors

    def is_bfloat16(self, name: str) -> bool:
        """Whether bfloat16 holds as much as the file does of a tensor."""
        kind = self._file.tensors[self._places[name][0]].tensor_type
        return kind not in (Type.F32, Type.F16)

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """As `WeightFiles.check`."""
        name = self._file.files[0]
        known = set(_IGNORED)
        for one in expected:
            there, expert = self._places[one.name]
            known.add(there)
            tensor = self._file.tensors.get(there)
            if tensor is None:
                raise ModelFileError(
                    f"{name} lacks {there}: the download is incomplete, or the file is damaged"
                )
            size = tuple(int(n) for n in reversed(tensor.shape))
            if size[1 if expert is not None else 0 :] != one.shape:
                raise ModelFileError(
                    f"{name}: {there} is {list(size)}, and its metadata ask for {list(one.shape)}"
                )
        known |= {self._places[one][0] for one in optional if one in self._places}
        if surplus := [there for there in self._file.tensors if there not in known]:
            raise UnsupportedModelError(
                f"{name} holds {surplus[0]} ({len(surplus)} tensors more than it should), which "
                "Inlay does not know: take the model's *.safetensors"
            )

    def get(self, name: str) -> Matrix:
        """The tensor as floats, or its codes where kernels hold such."""
        there, expert = self._places[name]
        tensor = self._file.tensors[there]
        data = tensor.data if expert is None else tensor.data[expert]
        columns = int(tensor.shape[0])
        read = _CODES.get(tensor.tensor_type)
        matrix: Matrix = read(data, columns) if read else _floats(there, data, tensor.tensor_type)
        if there == _NAMES["embedding"] and self.is_bfloat16(name):
            return floats_of(matrix).to(torch.bfloat16)
        if self._shape.architecture not in _PAIRED:
            return matrix
        heads = {"attn_q.": self._shape.heads, "attn_k.": self._shape.kv_heads}
        found = [count for part, count in heads.items() if part in there]
        return matrix[_halves(len(matrix), found[0])] if found else matrix

    def fingerprint(self, shape: ModelShape) -> str:
        """As that of `WeightFiles`: sizes, heads of the files, and samples of their data."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps(asdict(shape), sort_keys=True).encode())
        for file in self._file.files:
            size = file.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            with file.open("rb") as stream:
                for i in range(_HASH_SAMPLES):
                    stream.seek(size * i // _HASH_SAMPLES)
                    digest.update(stream.read(_HASH_SAMPLE_BYTES))
        return digest.hexdigest()


def _places(shape: ModelShape) -> dict[str, tuple[str, int | None]]:
    """Where each of the makers' names lies: a tensor, and which expert of it."""
    names = names_of(shape).names
    places: dict[str, tuple[str, int | None]] = {}
    for part, pattern in _NAMES.items():
        if part.startswith("expert_"):
            for layer in shape.sparse_layers:
                for expert in range(shape.experts):
                    name = names[part].format(layer=layer, expert=expert)
                    places[name] = (pattern.format(layer=layer), expert)
            continue
        for layer in range(shape.layers if "{layer}" in pattern else 1):
            places[names[part].format(layer=layer)] = (pattern.format(layer=layer), None)
    return places


def _halves(rows: int, heads: int) -> Tensor:
    """Rows of pairs side by side, in the order of halves."""
    numbers = torch.arange(rows).view(heads, -1, 2)
    return numbers.transpose(1, 2).reshape(-1)


def _floats(name: str, data: Bytes, kind: Type) -> Tensor:
    try:
        values = gguf.dequantize(data, kind)
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"tensor {name} has the type {kind.name}, which is not read"
        ) from error
    return torch.from_numpy(np.array(values, np.float32))


def _q8_0(data: Bytes, columns: int) -> QuantizedRows:
    blocks = _blocks(data, columns, 34)
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    rows = (*codes.shape[:-2], columns)
    return QuantizedRows(
        "int8:g32", torch.from_numpy(codes.reshape(rows)), _scales(blocks), _GROUP, columns
    )


def _q4_0(data: Bytes, columns: int) -> QuantizedRows:
    # The low halves of the bytes are the first sixteen, the high ones the others.
    blocks = _blocks(data, columns, 18)
    packed = blocks[..., 2:]
    values = np.concatenate((packed & 15, packed >> 4), axis=-1)
    codes = values[..., 0::2] | values[..., 1::2] << 4
    rows = (*codes.shape[:-2], columns // 2)
    return QuantizedRows(
        "int4:g32", torch.from_numpy(codes.reshape(rows)), _scales(blocks), _GROUP, columns
    )


def _blocks(data: Bytes, columns: int, size: int) -> Bytes:
    return np.asarray(data).view(np.uint8).reshape(*data.shape[:-1], columns // _GROUP, size)


def _scales(blocks: Bytes) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].copy())


_CODES: dict[Type, Callable[[Bytes, int], QuantizedRows]] = {Type.Q8_0: _q8_0, Type.Q4_0: _q4_0}
