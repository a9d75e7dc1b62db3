"""A model's own weights as training holds them: none of them changes.

Matrices of attention, dense MLPs and shared experts are tensors in the dtype that products run in;
norms and routers are float32. Routed experts are packed once, in the layout that the kernels read
forward and backward. The embedding stays a view of its file.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from inlay import kernels
from inlay.core.errors import UnsupportedModelError
from inlay.core.model_config import read_shape
from inlay.core.model_shape import ModelShape
from inlay.models.adapter import Adapter
from inlay.models.checkpoint import Checkpoint, open_checked
from inlay.models.formats import part_formats
from inlay.models.memory import give_back_freed
from inlay.models.native_ops import NativeOps
from inlay.models.placed import Placed
from inlay.models.published.rows import floats_of
from inlay.models.tensor_weights import TensorWeights
from inlay.models.torch_arrays import tensor_of
from inlay.models.weight_names import layer_parts, names_of
from inlay.tune.frozen_formats import held_format
from inlay.tune.merge import MergedTensors

_PIECE_BYTES = 32 << 20  # of float32: rows that are converted at a time
_EXACT = ("router", "router_bias", "correction")


@dataclass(frozen=True)
class FrozenLayer:
    """One layer.

    Attributes:
        parts: by their names in `inlay.models.weight_names`.
        experts: the routed ones; None: it is dense.
    """

    parts: Mapping[str, Tensor]
    experts: kernels.ExpertWeights | None


@dataclass(frozen=True)
class FrozenWeights:
    """All weights of a model.

    Attributes:
        embedding_VM: as its file has it.
        head_VM: in `dtype`.
        dtype: of matrices and of what is multiplied with them, float32 or bfloat16.
        layer_devices: of each layer, but for its routed experts, which are the host's.
        expert_format: weight format of the routed experts.
    """

    shape: ModelShape
    embedding_VM: Tensor
    layers: tuple[FrozenLayer, ...]
    final_norm_M: Tensor
    head_VM: Tensor
    dtype: torch.dtype
    layer_devices: tuple[torch.device, ...]
    expert_format: str

    @property
    def device(self) -> torch.device:
        """Of the last layer, the last norm and the head."""
        return self.layer_devices[-1]


def check_trainable(shape: ModelShape) -> None:
    """Refuse what the training forward does not express.

    Raises:
        UnsupportedModelError: it names the part.
    """
    for part, there in (
        ("an activation other than SiLU", shape.activation.kind != "silu"),
        ("attention sinks", shape.sinks),
        ("norms behind attention and MLPs", shape.norms != "before"),
        ("norms of q and k over all heads", shape.qk_norm == "whole"),
        ("norms of q and k after their rotation", shape.qk_norm == "rotated"),
        ("layers without rotary positions", bool(shape.unrotated_layers)),
        ("rotary positions by neighbours", shape.rope.interleaved and shape.mla is None),
        ("factors of embeddings or logits", (shape.embedding_scale, shape.logit_scale) != (1, 1)),
        ("a score of its shared experts", shape.shared_gate),
        ("queries that grow with their position", shape.rope.query_growth > 0),
        ("biases of experts", shape.expert_bias),
        ("q, k and v in one matrix", bool(names_of(shape).stacked)),
    ):
        if there:
            raise UnsupportedModelError(
                f"{shape.architecture} models have {part}, which `inlay tune` does not train: take "
                "a Llama, Mistral, Qwen3, Qwen3-MoE, Mixtral, GLM-4.5 or DeepSeek model"
            )


def load_frozen(
    directory: Path,
    *,
    dtype: torch.dtype,
    expert_format: str = "auto",
    layer_devices: Sequence[torch.device] = (),
    adapters: Sequence[Adapter] = (),
) -> FrozenWeights:
    """Load the model of a Hugging Face directory for training.

    Args:
        dtype: of products, float32 or bfloat16.
        expert_format: of routed experts, in the host's memory; as `held_format` takes it.
        layer_devices: of everything else, for each layer; empty: the host has all.
        adapters: merged into the weights.

    Raises:
        ModelError: as `inlay.models.load_model`.

    Cost: one copy of the weights, and beside it while loading one expert, or `_PIECE_BYTES` of a
        matrix a few times.
    """
    shape = read_shape(directory)
    check_trainable(shape)
    tensors, fused = open_checked(directory, shape)
    if adapters:
        tensors = MergedTensors(tensors, shape, adapters)
    names = names_of(shape).names
    expert_format = held_format(shape, expert_format, str(dtype).removeprefix("torch."))
    experts = _Experts(tensors, shape, fused=fused, weight_format=expert_format)

    devices = tuple(layer_devices) or (torch.device("cpu"),) * shape.layers

    def tensor(
        name: str, size: tuple[int, ...], of: torch.dtype, device: torch.device = devices[-1]
    ) -> Tensor:
        held = torch.empty(size, dtype=of, device=device)
        rows = max(1, _PIECE_BYTES // (4 * math.prod(size[1:])))
        for start in range(0, size[0], rows):
            piece = slice(start, min(size[0], start + rows))
            held[piece] = tensor_of(floats_of(tensors.get(name, piece)))
            tensors.give_back()
        return held

    layers = []
    for layer in range(shape.layers):
        parts = {
            part: tensor(
                names[part].format(layer=layer),
                size,
                torch.float32 if part in _EXACT or part.endswith("_norm") else dtype,
                devices[layer],
            )
            for part, size in layer_parts(shape, layer).items()
        }
        layers.append(FrozenLayer(parts, experts.of(layer)))
    head = names["embedding" if shape.tie_embeddings else "head"]
    weights = FrozenWeights(
        shape=shape,
        embedding_VM=tensor_of(floats_of(tensors.view(names["embedding"]))),
        layers=tuple(layers),
        final_norm_M=tensor(names["final_norm"], (shape.hidden,), torch.float32),
        head_VM=tensor(head, (shape.vocab, shape.hidden), dtype),
        dtype=dtype,
        layer_devices=devices,
        expert_format=expert_format,
    )
    give_back_freed()
    return weights


class _Experts:
    """Packs the routed experts of a checkpoint."""

    def __init__(
        self, tensors: Checkpoint, shape: ModelShape, *, fused: bool, weight_format: str
    ) -> None:
        self._shape, self._ops, self._format = shape, NativeOps(), weight_format
        formats = part_formats(shape, weight_format, "float32")
        self._source = TensorWeights(
            tensors, shape, Placed.whole(self._ops, shape), formats, fused_experts=fused
        )

    def of(self, layer: int) -> kernels.ExpertWeights | None:
        shape = self._shape
        if layer not in shape.sparse_layers:
            return None
        packed = self._ops.new_experts(
            shape.experts, shape.hidden, shape.moe_intermediate, self._format
        )
        for expert in range(shape.experts):
            self._ops.set_expert(packed, expert, self._source.expert(layer, expert))
            self._source.give_back()
        return packed
