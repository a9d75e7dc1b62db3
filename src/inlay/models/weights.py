"""A model's weights in memory: packs the tensors of its files part by part for a backend.

At any time at most one part (a matrix, or one expert) exists besides the packed weights: the
files themselves are mapped, their pages belong to the system's cache. The embedding stays a view
of its file, because a step reads only a few of its rows.
"""

from collections.abc import Container, Iterable, Iterator
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
from inlay.models.ops import Array, Experts, ExpertTensors, Linear, Ops
from inlay.models.quantized import Matrix, QuantizedFiles, floats_of
from inlay.models.weight_files import WeightFiles
from inlay.models.weight_names import Expected, expected_tensors, layer_parts, names_of


@dataclass(frozen=True)
class GqaWeights:
    """Grouped-query attention."""

    qkv: Linear
    output: Linear
    q_norm_D: Array | None
    k_norm_D: Array | None
    sinks_H: Array | None


@dataclass(frozen=True)
class MlaWeights:
    """Latent attention, in the form that attends to latents.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.2.

    Attributes:
        down: from the model's width: queries (of all heads, or their latent), then the latent of
            keys and values with what is rotated.
        q_latent_norm_L, q_up: from the queries' latent to the queries; None where they have none.
        absorb: for each head, from what is not rotated of a query to a query of latents.
        expand: for each head, from a latent to a value.
    """

    down: Linear
    q_latent_norm_L: Array | None
    q_up: Linear | None
    kv_latent_norm_L: Array
    absorb: Linear
    expand: Linear
    output: Linear


@dataclass(frozen=True)
class DenseWeights:
    """An MLP that all tokens pass."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class MixtureWeights:
    """A mixture of experts."""

    router: Linear
    correction_E: Array | None
    experts: Experts
    shared: Experts | None


@dataclass(frozen=True)
class LayerWeights:
    """One layer."""

    attention_norm_M: Array
    attention: GqaWeights | MlaWeights
    mlp_norm_M: Array
    mlp: DenseWeights | MixtureWeights


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
    """Tensors by their names in a checkpoint; `WeightFiles` and `QuantizedFiles` are such."""

    def get(self, name: str) -> Matrix:
        """The tensor, to be read only."""
        ...


class Checkpoint(Tensors, Protocol):
    """All tensors of a model, in one of the forms that makers publish."""

    def holds(self, name: str) -> bool:
        """Whether it is there."""
        ...

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """Compare names and shapes with what the model needs.

        Raises:
            ModelFileError: tensors are missing, left over, or have other shapes; names them.
        """
        ...

    def is_bfloat16(self, name: str) -> bool:
        """Whether bfloat16 holds all of a tensor of floats."""
        ...

    def fingerprint(self, shape: ModelShape) -> str:
        """Of the content: 32 hex digits."""
        ...


def open_tensors(directory: Path, shape: ModelShape) -> Checkpoint:
    """The files of a model directory, by what its config.json says of them.

    Raises:
        ModelNotFoundError: a file is missing.
        ModelFileError: a file is damaged.
        UnsupportedModelError: a dtype.
    """
    stored = shape.quantization
    if stored is None:
        return WeightFiles(directory)
    if stored.method == "gguf":
        # Loads the format's library.
        from inlay.models.gguf.reader import LINK
        from inlay.models.gguf.tensors import GgufTensors

        return GgufTensors(directory / LINK, shape)
    return QuantizedFiles(WeightFiles(directory, quantized=True), stored)


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
    stored, tensors = shape.quantization, open_tensors(directory, shape)
    names = names_of(shape).names
    first_sparse = shape.sparse_layers[0] if shape.sparse_layers else 0
    fused = tensors.holds(names["experts_gate_up"].format(layer=first_sparse))
    tensors.check(expected_tensors(shape, fused_experts=fused), optional=(names["head"],))
    # float32 holds float16 exactly, too.
    float_dtype = "bfloat16" if tensors.is_bfloat16(names["embedding"]) else "float32"
    if weight_format == "auto":
        weight_format = ops.auto_format(float_dtype)
        if stored is not None and stored.weight_format in ops.weight_formats:
            weight_format = stored.weight_format
    weight_format = full_name(weight_format)
    if weight_format not in ops.weight_formats:
        raise UnsupportedModelError(
            f"weight_format {weight_format!r} is not supported with {ops.name}; supported are "
            f"auto, {', '.join(ops.weight_formats)}"
        )
    formats = part_formats(shape, weight_format, float_dtype)
    check_row_lengths(shape, formats)
    return OpenWeights(
        source=TensorWeights(tensors, shape, ops, formats, fused_experts=fused),
        weight_format=weight_format,
        float_dtype=float_dtype,
        held_bytes=packed_bytes(shape, weight_format, float_dtype),
        fingerprint=tensors.fingerprint(shape),
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
        self._row = names_of(shape)
        self._fused = fused_experts

    def embedding(self) -> Array:
        """As the protocol says."""
        return self._ops.table(floats_of(self._get("embedding", 0)), self._formats.head)

    def final_norm(self) -> Array:
        """As the protocol says."""
        return self._vector("final_norm")

    def head(self) -> Linear:
        """As the protocol says; of tied models made from the embedding."""
        part = "embedding" if self._shape.tie_embeddings else "head"
        return self._linear((part,), 0, self._formats.head)

    def layer(self, layer: int) -> LayerWeights:
        """As the protocol says."""
        there = layer_parts(self._shape, layer)
        return LayerWeights(
            attention_norm_M=self._vector("attention_norm", layer),
            attention=self._mla(layer, there) if self._shape.mla else self._gqa(layer, there),
            mlp_norm_M=self._vector("mlp_norm", layer),
            mlp=self._mixture(layer, there) if "router" in there else self._dense(layer, there),
        )

    def _gqa(self, layer: int, there: Container[str]) -> GqaWeights:
        shape, attention = self._shape, self._formats.attention
        return GqaWeights(
            qkv=self._linear(("q", "k", "v"), layer, attention, shape.qkv_bias),
            output=self._linear(("output",), layer, attention, shape.output_bias),
            q_norm_D=self._optional("q_norm", layer, there),
            k_norm_D=self._optional("k_norm", layer, there),
            sinks_H=self._optional("sinks", layer, there),
        )

    def _mla(self, layer: int, there: Container[str]) -> MlaWeights:
        shape, attention, mla = self._shape, self._formats.attention, self._shape.mla
        assert mla is not None
        q = "q_down" if "q_down" in there else "q"
        latent = self._formats.latent
        kv_up = floats_of(self._get("kv_up", layer)).view(shape.heads, -1, mla.kv_rank)
        keys, values = kv_up[:, : mla.nope_dim], kv_up[:, mla.nope_dim :]
        with _damage(f"kv_up of layer {layer}"):
            absorb = self._ops.pack_heads([head.t() for head in keys], latent)
            expand = self._ops.pack_heads(list(values), latent)
        return MlaWeights(
            down=self._linear((q, "kv_down"), layer, attention, shape.qkv_bias),
            q_latent_norm_L=self._optional("q_latent_norm", layer, there),
            q_up=self._linear(("q_up",), layer, attention) if "q_up" in there else None,
            kv_latent_norm_L=self._vector("kv_latent_norm", layer),
            absorb=absorb,
            expand=expand,
            output=self._linear(("output",), layer, attention, shape.output_bias),
        )

    def _dense(self, layer: int, there: Container[str]) -> DenseWeights:
        bias, mlp = self._shape.mlp_bias, self._formats.mlp
        return DenseWeights(
            gate_up=self._linear(("gate", "up"), layer, mlp, bias),
            down=self._linear(("down",), layer, mlp, bias),
        )

    def _mixture(self, layer: int, there: Container[str]) -> MixtureWeights:
        router = self._linear(("router",), layer, self._formats.router, "router_bias" in there)
        return MixtureWeights(
            router=router,
            correction_E=self._optional("correction", layer, there),
            experts=self._experts(layer),
            shared=self._shared(layer) if "shared_gate" in there else None,
        )

    def _get(self, part: str, layer: int, **more: int) -> Matrix:
        return self._tensors.get(self._row.names[part].format(layer=layer, **more))

    def _vector(self, part: str, layer: int = 0) -> Array:
        return self._ops.vector(floats_of(self._get(part, layer)))

    def _optional(self, part: str, layer: int, there: Container[str]) -> Array | None:
        return self._vector(part, layer) if part in there else None

    def _linear(
        self, parts: tuple[str, ...], layer: int, weight_format: str, bias: bool = False
    ) -> Linear:
        with _damage(f"{', '.join(parts)} of layer {layer}"):
            return self._ops.pack_linear(
                [self._rows(part, layer) for part in parts],
                [self._bias(part, layer) for part in parts] if bias else [],
                weight_format,
            )

    def _bias(self, part: str, layer: int) -> Tensor:
        """Zeros for what has none beside one that has."""
        if part == "q" and self._shape.mla:
            return torch.zeros(self._shape.heads * self._shape.head_dim)
        return floats_of(self._apart(part, self._get(f"{part}_bias", layer)))

    def _rows(self, part: str, layer: int) -> Matrix:
        return self._apart(part, self._get(part, layer))

    def _apart(self, part: str, rows: Matrix) -> Matrix:
        """Where rotated pairs are neighbours: the first of each, then the second of each, as the
        decoder rotates them. Scores are the same.
        """
        shape, mla = self._shape, self._shape.mla
        if not shape.rope.interleaved or mla is None or part not in ("q", "q_up", "kv_down"):
            return rows
        numbers = torch.arange(len(rows)).view(1 if part == "kv_down" else shape.heads, -1)
        rotated = numbers[:, -mla.rope_dim :]
        order = (numbers[:, : -mla.rope_dim], rotated[:, ::2], rotated[:, 1::2])
        return rows[torch.cat(order, dim=1).flatten()]

    def _expert(self, layer: int, expert: int) -> ExpertTensors:
        if not self._fused:
            gate, up, down = (
                self._get(part, layer, expert=expert)
                for part in ("expert_gate", "expert_up", "expert_down")
            )
            return ExpertTensors(gate, up, down)
        gate_up = self._get("experts_gate_up", layer)[expert]
        down = self._get("experts_down", layer)[expert]
        if not self._row.columns_first:
            half = len(gate_up) // 2
            return ExpertTensors(gate_up[:half], gate_up[half:], down)
        biases = None
        if self._shape.expert_bias:
            gate_up_bias = floats_of(self._get("experts_gate_up_bias", layer)[expert])
            down_bias = floats_of(self._get("experts_down_bias", layer)[expert])
            biases = (gate_up_bias[::2], gate_up_bias[1::2], down_bias)
        if isinstance(gate_up, Tensor):  # quantised ones have rows first
            gate_up, down = gate_up.t(), floats_of(down).t()
        return ExpertTensors(gate_up[::2], gate_up[1::2], down, biases)

    def _experts(self, layer: int) -> Experts:
        shape = self._shape
        with _damage(f"the experts of layer {layer}"):
            return self._ops.pack_experts(
                shape.experts,
                shape.hidden,
                shape.moe_intermediate,
                partial(self._expert, layer),
                self._formats.experts,
                biases=shape.expert_bias,
            )

    def _shared(self, layer: int) -> Experts:
        """As one expert."""
        shape = self._shape
        gate, up, down = (self._get(f"shared_{part}", layer) for part in ("gate", "up", "down"))
        one = ExpertTensors(gate, up, down)
        with _damage(f"the shared experts of layer {layer}"):
            return self._ops.pack_experts(
                1, shape.hidden, shape.shared_intermediate, lambda _: one, self._formats.mlp
            )


@contextmanager
def _damage(part: str) -> Iterator[None]:
    """Weights that are not finite are the file's fault, whatever else fails is not."""
    try:
        yield
    except NotFiniteError as error:
        raise ModelFileError(f"{part} cannot be packed ({error}): the file is damaged") from error
