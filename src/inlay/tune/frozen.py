"""A model's own weights as training holds them: none of them changes.

Matrices of attention, dense MLPs and shared experts are tensors in the dtype that products run in;
norms and routers are float32. Routed experts are packed once, in the layout that the kernels read
forward and backward. The embedding stays a view of its file.
"""

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
from inlay.models.formats import full_name, part_formats
from inlay.models.memory import give_back_freed
from inlay.models.native_ops import NativeOps
from inlay.models.placed import Placed
from inlay.models.quantized import floats_of
from inlay.models.tensor_weights import TensorWeights
from inlay.models.weight_names import layer_parts, names_of
from inlay.tune.merge import MergedTensors

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
        expert_format: weight format of the routed experts.
        fingerprint: of the files' content.
    """

    shape: ModelShape
    embedding_VM: Tensor
    layers: tuple[FrozenLayer, ...]
    final_norm_M: Tensor
    head_VM: Tensor
    dtype: torch.dtype
    device: torch.device
    expert_format: str
    fingerprint: str


def check_trainable(shape: ModelShape) -> None:
    """Refuse what the training forward does not express.

    Raises:
        UnsupportedModelError: it names the part.
    """
    for part, there in (
        ("an activation other than SiLU", shape.activation.kind != "silu"),
        ("attention sinks", shape.sinks),
        ("biases of experts", shape.expert_bias),
    ):
        if there:
            raise UnsupportedModelError(
                f"{shape.architecture} models have {part}, which `inlay tune` does not train: take "
                "a Llama, Mistral, Qwen3, Qwen3-MoE, Mixtral, GLM-4.5 or DeepSeek model"
            )


def held_format(shape: ModelShape, wanted: str, dtype: torch.dtype) -> str:
    """Weight format of routed experts; `auto` is what the files hold if they are quantised, else
    the dtype of products.
    """
    if wanted == "auto":
        stored = shape.quantization
        return stored.weight_format if stored else str(dtype).removeprefix("torch.")
    return full_name(wanted)


def load_frozen(
    directory: Path,
    *,
    dtype: torch.dtype,
    expert_format: str = "auto",
    device: torch.device = torch.device("cpu"),  # noqa: B008 - it is constant
    adapters: Sequence[Adapter] = (),
) -> FrozenWeights:
    """Load the model of a Hugging Face directory for training.

    Args:
        dtype: of products, float32 or bfloat16.
        expert_format: of routed experts, in the host's memory; as `held_format` takes it.
        device: of everything else.
        adapters: merged into the weights.

    Raises:
        ModelError: as `inlay.models.load_model`.

    Cost: one copy of the weights, and one matrix or expert beside it while loading.
    """
    shape = read_shape(directory)
    check_trainable(shape)
    tensors, fused = open_checked(directory, shape)
    if adapters:
        tensors = MergedTensors(tensors, shape, adapters)
    names = names_of(shape).names
    expert_format = held_format(shape, expert_format, dtype)
    experts = _Experts(tensors, shape, fused=fused, weight_format=expert_format)

    def matrix(name: str, of: torch.dtype) -> Tensor:
        tensor = floats_of(tensors.get(name)).to(device, of, copy=True)
        tensors.give_back()
        return tensor

    layers = []
    for layer in range(shape.layers):
        parts = {
            part: matrix(
                names[part].format(layer=layer),
                torch.float32 if part in _EXACT or part.endswith("_norm") else dtype,
            )
            for part in layer_parts(shape, layer)
        }
        layers.append(FrozenLayer(parts, experts.of(layer)))
    weights = FrozenWeights(
        shape=shape,
        embedding_VM=floats_of(tensors.view(names["embedding"])),
        layers=tuple(layers),
        final_norm_M=matrix(names["final_norm"], torch.float32),
        head_VM=matrix(names["embedding" if shape.tie_embeddings else "head"], dtype),
        dtype=dtype,
        device=device,
        expert_format=expert_format,
        fingerprint=tensors.fingerprint(shape),
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
