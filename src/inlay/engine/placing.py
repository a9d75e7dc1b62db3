"""Chooses where the layers of a model go, for the device and the settings of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from inlay.core.errors import ResourceError
from inlay.core.hardware import Device, Machine
from inlay.core.model_shape import ModelShape
from inlay.core.offload import Offload, place
from inlay.core.placement import LayerPlacement, Placement
from inlay.core.roofline import Formats, parts_of
from inlay.core.units import format_bytes
from inlay.models.formats import full_name, part_formats

_USUAL_CONTEXT_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Memory that a model may take.

    Attributes:
        host_bytes: of the host.
        gpu_bytes: of each GPU by its name.
    """

    host_bytes: int
    gpu_bytes: dict[str, int]


def choose_placement(
    shape: ModelShape,
    weight_format: str,
    budget: Budget,
    *,
    context_tokens: int | None,
    step_tokens: int,
) -> Placement:
    """Fill GPUs by intensity, as `inlay plan` does: cache and matrices, then routed experts.

    Args:
        weight_format: of the experts, or `EXPERTS+REST`; not `auto`.
        context_tokens: of all requests, for which the cache has room; None: the usual.
        step_tokens: most tokens of a step.

    Raises:
        ResourceError: not one layer has room on a GPU, or the rest has none on the host.
    """
    formats = Formats(**vars(part_formats(shape, full_name(weight_format), "bfloat16")))
    parts = parts_of(shape, formats)
    kv_tokens = context_tokens or min(shape.max_context_tokens, _USUAL_CONTEXT_TOKENS)
    machine = Machine(
        name="this machine",
        nodes=(_memory("host", budget.host_bytes),),
        gpus=tuple(_memory(name, size) for name, size in budget.gpu_bytes.items()),
    )
    offload = place(shape, parts, machine, kv_tokens=kv_tokens, step_tokens=step_tokens)
    if not offload.gpu_layers:
        each = min(budget.gpu_bytes.values())
        raise ResourceError(
            f"{format_bytes(each)} of a GPU hold not one layer with its cache for {kv_tokens} "
            "tokens, the activations of a step and the driver: give more with "
            "placement.gpu_memory, shorten max_context_tokens, or use device cpu"
        )
    return _over(shape, offload, list(budget.gpu_bytes))


def _memory(name: str, size_bytes: int) -> Device:
    """A device of which only the memory counts."""
    return Device(title=name, memory_gb=size_bytes / 1e9, bandwidth_gbs=1, tflops={"fp32": 1})


def _over(shape: ModelShape, offload: Offload, gpus: Sequence[str]) -> Placement:
    """Neighbouring layers to each GPU, the last ones to the host where there is no room."""
    sparse = set(shape.sparse_layers)
    on_gpus = offload.gpu_layers
    return Placement(
        layers=tuple(
            LayerPlacement(
                device=gpus[layer * len(gpus) // on_gpus],
                resident=offload.gpu_experts if layer in sparse else 0,
            )
            if layer < on_gpus
            else LayerPlacement()
            for layer in range(shape.layers)
        )
    )
