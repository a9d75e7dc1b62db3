"""A model's weights in memory: loads the files part by part into a backend's packed form.

At any time at most one part (a matrix, or one expert) exists besides the packed weights: the
files themselves are mapped, their pages belong to the system's cache. The embedding stays a view
of its file, because a step reads only a few of its rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from inlay.core.model_shape import ModelShape
from inlay.models.formats import PartFormats
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
        embedding_VM: rows per token id, in the files' dtype.
        head: output matrix, packed; of tied models from the embedding.
    """

    embedding_VM: Array
    layers: tuple[LayerWeights, ...]
    final_norm_M: Array
    head: Linear


def check_files(files: WeightFiles, shape: ModelShape) -> None:
    """Raise ModelFileError unless the files hold exactly the tensors that the shape needs."""
    names = WEIGHT_NAMES[shape.architecture]
    expected = expected_tensors(shape, fused_experts=_fused_experts(files, shape))
    files.check(expected, optional=(names["head"],))


def float_dtype(files: WeightFiles, shape: ModelShape) -> str:
    """`bfloat16` if the files hold that, else `float32`, which holds float16 exactly, too."""
    q = WEIGHT_NAMES[shape.architecture]["q"].format(layer=0)
    return "bfloat16" if files.tensors[q].dtype == torch.bfloat16 else "float32"


class _Loader:
    def __init__(
        self, files: WeightFiles, shape: ModelShape, ops: Ops, formats: PartFormats
    ) -> None:
        self.files, self.shape, self.ops, self.formats = files, shape, ops, formats
        self.names: Mapping[str, str] = WEIGHT_NAMES[shape.architecture]
        self.fused = _fused_experts(files, shape)

    def get(self, part: str, layer: int, **more: int) -> Tensor:
        return self.files.get(self.names[part].format(layer=layer, **more))

    def vector(self, part: str, layer: int = 0) -> Array:
        return self.ops.vector(self.get(part, layer))

    def linear(
        self, parts: tuple[str, ...], layer: int, weight_format: str, bias: bool = False
    ) -> Linear:
        return self.ops.pack_linear(
            [self.get(part, layer) for part in parts],
            [self.get(f"{part}_bias", layer) for part in parts] if bias else [],
            weight_format,
        )

    def expert(self, layer: int, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        if self.fused:
            gate_up = self.get("experts_gate_up", layer)[expert]
            gate, up = gate_up.chunk(2)
            return gate, up, self.get("experts_down", layer)[expert]
        gate, up, down = (
            self.get(part, layer, expert=expert)
            for part in ("expert_gate", "expert_up", "expert_down")
        )
        return gate, up, down

    def layer(self, layer: int) -> LayerWeights:
        shape, formats = self.shape, self.formats
        sparse = layer in shape.sparse_layers
        return LayerWeights(
            attention_norm_M=self.vector("attention_norm", layer),
            qkv=self.linear(("q", "k", "v"), layer, formats.attention, shape.qkv_bias),
            output=self.linear(("output",), layer, formats.attention, shape.output_bias),
            q_norm_D=self.vector("q_norm", layer) if shape.qk_norm else None,
            k_norm_D=self.vector("k_norm", layer) if shape.qk_norm else None,
            mlp_norm_M=self.vector("mlp_norm", layer),
            gate_up=None
            if sparse
            else self.linear(("gate", "up"), layer, formats.mlp, shape.mlp_bias),
            down=None if sparse else self.linear(("down",), layer, formats.mlp, shape.mlp_bias),
            router=self.linear(("router",), layer, formats.router) if sparse else None,
            experts=self.ops.pack_experts(
                shape.experts,
                shape.hidden,
                shape.moe_intermediate,
                partial(self.expert, layer),
                formats.mlp,
            )
            if sparse
            else None,
        )


def load_weights(files: WeightFiles, shape: ModelShape, ops: Ops, formats: PartFormats) -> Weights:
    """Pack all weights. Call `check_files` first.

    Raises:
        ModelFileError: a file turned out to be damaged.
    """
    loader = _Loader(files, shape, ops, formats)
    return Weights(
        embedding_VM=ops.table(files.get(loader.names["embedding"]), formats.head),
        layers=tuple(loader.layer(layer) for layer in range(shape.layers)),
        final_norm_M=loader.vector("final_norm"),
        head=loader.linear(("embedding" if shape.tie_embeddings else "head",), 0, formats.head),
    )


def _fused_experts(files: WeightFiles, shape: ModelShape) -> bool:
    if not shape.sparse_layers:
        return False
    name = WEIGHT_NAMES[shape.architecture]["experts_gate_up"].format(layer=shape.sparse_layers[0])
    return name in files.tensors
