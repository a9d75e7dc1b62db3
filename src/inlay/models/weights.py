"""A model's weights in memory: packs the tensors of its files part by part for a backend.

At any time at most one part (a matrix, or one expert) exists besides the packed weights: the
files themselves are mapped, their pages belong to the system's cache. The embedding stays a view
of its file, because a step reads only a few of its rows.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from inlay.core.errors import ModelFileError, NotFiniteError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.models.formats import (
    PartFormats,
    check_row_lengths,
    full_name,
    packed_bytes,
    part_formats,
)
from inlay.models.ops import Array, Experts, Linear, Ops
from inlay.models.weight_files import WeightFiles
from inlay.models.weight_names import WEIGHT_NAMES, expected_tensors


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Either `gate_up` and `down`, or `router` and `experts`, are set."""

    attention_norm_M: Array
    qkv: Linear
    output: Linear
    q_norm_D: Array | None
    k_norm_D: Array | None
    mlp_norm_M: Array
    gate_up: Linear | None
    down: Linear | None
    router: Linear | None
    experts: Experts | None


@dataclass(frozen=True)
class Weights:
    """All weights of one model.

    Attributes:
        embedding_VM: rows per token id, as the files have them.
        head: output matrix, packed; of tied models from the embedding.
    """

    embedding_VM: Array
    layers: tuple[LayerWeights, ...]
    final_norm_M: Array
    head: Linear


class WeightSource(Protocol):
    """Where the weights come from, in the order in which they are used."""

    def embedding(self) -> Array:
        """Rows per token id."""
        ...

    def layer(self, layer: int) -> LayerWeights:
        """All of one layer."""
        ...

    def final_norm(self) -> Array:
        """The norm before the head."""
        ...

    def head(self) -> Linear:
        """The output matrix."""
        ...


class Tensors(Protocol):
    """Tensors by their names in a checkpoint; `WeightFiles` are such."""

    def get(self, name: str) -> Tensor:
        """The tensor, to be read only."""
        ...


def load_weights(source: WeightSource, layers: int) -> Weights:
    """Take everything from a source. Raises ModelFileError where that is damaged."""
    return Weights(
        embedding_VM=source.embedding(),
        layers=tuple(source.layer(layer) for layer in range(layers)),
        final_norm_M=source.final_norm(),
        head=source.head(),
    )


@dataclass(frozen=True)
class OpenWeights:
    """Weights that can be loaded.

    Attributes:
        weight_format: how the matrices are held; see `part_formats` for which ones.
        float_dtype: dtype of the floats that are kept as they are, `float32` or `bfloat16`.
        held_bytes: memory that they take.
        fingerprint: of their content.
    """

    source: WeightSource
    weight_format: str
    float_dtype: str
    held_bytes: int
    fingerprint: str


def open_checkpoint(
    directory: Path, shape: ModelShape, ops: Ops, weight_format: str = "auto"
) -> OpenWeights:
    """Open and check the safetensors of a model directory.

    Args:
        weight_format: one of `WEIGHT_FORMATS`.

    Raises:
        ModelNotFoundError: a file is missing.
        ModelFileError: a file is damaged, or does not hold exactly what the shape needs.
        UnsupportedModelError: a dtype, or a weight format that the backend does not have or that
            cannot sum such long rows.
    """
    files = WeightFiles(directory)
    names = WEIGHT_NAMES[shape.architecture]
    first_sparse = shape.sparse_layers[0] if shape.sparse_layers else 0
    fused = names["experts_gate_up"].format(layer=first_sparse) in files.tensors
    expected = expected_tensors(shape, fused_experts=fused)
    files.check(expected, optional=(names["head"],))
    q = files.tensors[names["q"].format(layer=0)]
    # float32 holds float16 exactly, too.
    float_dtype = "bfloat16" if q.dtype == torch.bfloat16 else "float32"
    if weight_format == "auto":
        weight_format = ops.auto_format(float_dtype)
    weight_format = full_name(weight_format)
    if weight_format not in ops.weight_formats:
        raise UnsupportedModelError(
            f"weight_format {weight_format!r} is not supported with {ops.name}; supported are "
            f"auto, {', '.join(ops.weight_formats)}"
        )
    formats = part_formats(weight_format, float_dtype)
    check_row_lengths(shape, formats)
    return OpenWeights(
        source=TensorWeights(files, shape, ops, formats, fused_experts=fused),
        weight_format=weight_format,
        float_dtype=float_dtype,
        held_bytes=packed_bytes(shape, weight_format, float_dtype),
        fingerprint=files.fingerprint(shape),
    )


class TensorWeights:
    """A `WeightSource` that packs tensors when it is asked for them.

    Args:
        tensors: with the names and shapes of `expected_tensors`.
        formats: of the matrices.
        fused_experts: the experts of a layer are one tensor.
    """

    def __init__(
        self,
        tensors: Tensors,
        shape: ModelShape,
        ops: Ops,
        formats: PartFormats,
        *,
        fused_experts: bool,
    ) -> None:
        self._tensors, self._shape, self._ops, self._formats = tensors, shape, ops, formats
        self._names: Mapping[str, str] = WEIGHT_NAMES[shape.architecture]
        self._fused = fused_experts

    def embedding(self) -> Array:
        """As the protocol says."""
        return self._ops.table(self._get("embedding", 0), self._formats.head)

    def final_norm(self) -> Array:
        """As the protocol says."""
        return self._vector("final_norm")

    def head(self) -> Linear:
        """As the protocol says; of tied models made from the embedding."""
        part = "embedding" if self._shape.tie_embeddings else "head"
        return self._linear((part,), 0, self._formats.head)

    def layer(self, layer: int) -> LayerWeights:
        """As the protocol says."""
        shape, formats = self._shape, self._formats
        sparse = layer in shape.sparse_layers
        return LayerWeights(
            attention_norm_M=self._vector("attention_norm", layer),
            qkv=self._linear(("q", "k", "v"), layer, formats.attention, shape.qkv_bias),
            output=self._linear(("output",), layer, formats.attention, shape.output_bias),
            q_norm_D=self._vector("q_norm", layer) if shape.qk_norm else None,
            k_norm_D=self._vector("k_norm", layer) if shape.qk_norm else None,
            mlp_norm_M=self._vector("mlp_norm", layer),
            gate_up=None
            if sparse
            else self._linear(("gate", "up"), layer, formats.mlp, shape.mlp_bias),
            down=None if sparse else self._linear(("down",), layer, formats.mlp, shape.mlp_bias),
            router=self._linear(("router",), layer, formats.router) if sparse else None,
            experts=self._experts(layer) if sparse else None,
        )

    def _get(self, part: str, layer: int, **more: int) -> Tensor:
        return self._tensors.get(self._names[part].format(layer=layer, **more))

    def _vector(self, part: str, layer: int = 0) -> Array:
        return self._ops.vector(self._get(part, layer))

    def _linear(
        self, parts: tuple[str, ...], layer: int, weight_format: str, bias: bool = False
    ) -> Linear:
        with _damage(f"{', '.join(parts)} of layer {layer}"):
            return self._ops.pack_linear(
                [self._get(part, layer) for part in parts],
                [self._get(f"{part}_bias", layer) for part in parts] if bias else [],
                weight_format,
            )

    def _expert(self, layer: int, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        if self._fused:
            gate_up = self._get("experts_gate_up", layer)[expert]
            gate, up = gate_up.chunk(2)
            return gate, up, self._get("experts_down", layer)[expert]
        gate, up, down = (
            self._get(part, layer, expert=expert)
            for part in ("expert_gate", "expert_up", "expert_down")
        )
        return gate, up, down

    def _experts(self, layer: int) -> Experts:
        shape = self._shape
        with _damage(f"the experts of layer {layer}"):
            return self._ops.pack_experts(
                shape.experts,
                shape.hidden,
                shape.moe_intermediate,
                partial(self._expert, layer),
                self._formats.mlp,
            )


@contextmanager
def _damage(part: str) -> Iterator[None]:
    """Weights that are not finite are the file's fault, whatever else fails is not."""
    try:
        yield
    except NotFiniteError as error:
        raise ModelFileError(f"{part} cannot be packed ({error}): the file is damaged") from error
