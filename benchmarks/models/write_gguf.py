"""Writes a random model as a GGUF file, a matrix at a time."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from benchmarks.models.random_model import RandomModel, Stack
from inlay.models.gguf.architectures import KEYS_UP, NAMES, ROWS, VALUES_UP
from tests.support.gguf_files import ARCHITECTURES, add_metadata, metadata_of

Shape = tuple[int, ...]
NO_TOKENIZER = {"tokenizer.ggml.model": "no_vocab"}


def write_gguf(
    file: Path,
    model: RandomModel,
    *,
    experts: str,
    rest: str,
    tokenizer: Mapping[str, Any] = NO_TOKENIZER,
) -> None:
    """Write the file.

    Args:
        experts, rest: GGUF quantisation types (`Q4_0`, `Q8_0`) of the experts and of all other
            matrices but the router, which stays float32.
        tokenizer: its metadata.
    """
    architecture = ARCHITECTURES[model.config["model_type"]]
    names = NAMES | dict(ROWS[architecture].names)
    kinds = {"experts": Type[experts], "rest": Type[rest]}
    writer = gguf.GGUFWriter(file, architecture)
    described = metadata_of(model.config, architecture, split_latent=True)
    for key, value in (described | dict(tokenizer)).items():
        add_metadata(writer, key, value)
    writer.add_vocab_size(model.shape.vocab)
    for part, layer, length in model.vectors():
        writer.add_tensor_info(
            names[part].format(layer=layer), (length,), np.dtype("f4"), 4 * length
        )
    for part, layer, shape, copies in model.matrices():
        kind = _kind(part, kinds)
        for name, whole in _pieces(model, part, shape, copies, names):
            _declare(writer, name.format(layer=layer), whole, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for part, _, length in model.vectors():
        writer.write_tensor_data(np.full(length, part.endswith("norm"), np.float32))
    for stack in model.stacks():
        for data in _data(model, stack, _kind(stack.part, kinds)):
            writer.write_tensor_data(data)
    writer.close()


def _kind(part: str, kinds: dict[str, Type]) -> Type:
    if part == "router":
        return Type.F32
    return kinds["experts" if part.startswith("expert_") else "rest"]


def _pieces(
    model: RandomModel, part: str, shape: tuple[int, int], copies: int, names: dict[str, str]
) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of the tensors that hold a matrix."""
    rows, columns = shape
    mla = model.shape.mla
    if part == "kv_up" and mla:
        yield KEYS_UP, (model.shape.heads, columns, mla.nope_dim)
        yield VALUES_UP, (model.shape.heads, mla.value_dim, columns)
    elif part.startswith("expert_"):
        yield names[part], (copies, rows, columns)
    else:
        yield names[part], (copies * rows, columns)


def _declare(writer: gguf.GGUFWriter, name: str, shape: Shape, kind: Type) -> None:
    stored, dtype = shape, np.dtype(np.float32)
    if kind is not Type.F32:
        stored, dtype = gguf.quant_shape_to_byte_shape(shape, kind), np.dtype(np.uint8)
    nbytes = int(np.prod(stored)) * dtype.itemsize
    writer.add_tensor_info(name, stored, dtype, nbytes, raw_dtype=kind)


def _data(model: RandomModel, stack: Stack, kind: Type) -> Iterator[Any]:
    """All copies of a matrix as they lie in the file."""
    mla = model.shape.mla
    if kind is Type.F32:
        yield stack.base_RK
    elif stack.part == "kv_up" and mla:
        heads = stack.base_RK.reshape(model.shape.heads, -1, mla.kv_rank)
        keys, values = heads[:, : mla.nope_dim].swapaxes(1, 2), heads[:, mla.nope_dim :]
        for piece in (keys, values):
            yield gguf.quantize(np.ascontiguousarray(piece), kind)
    else:
        first = gguf.quantize(stack.base_RK, kind)
        yield np.concatenate([stack.copy(index, first) for index in range(stack.copies)])
