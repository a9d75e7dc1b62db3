"""Chooses where the layers of a model go, for the device and the settings of an engine."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from inlay.core.errors import ConfigError, ResourceError
from inlay.core.hardware import Device, Machine
from inlay.core.model_config import read_shape
from inlay.core.model_shape import ModelShape
from inlay.core.offload import Offload, place
from inlay.core.placement import CPU, LayerPlacement, Placement
from inlay.core.roofline import Formats, parts_of
from inlay.core.tensor_parallel import shape_of_rank
from inlay.core.units import format_bytes, parse_bytes, size_to_set
from inlay.engine.config import EngineConfig
from inlay.experts import place_by_rules, read_rules
from inlay.models.formats import full_name, part_formats
from inlay.models.host_share import STREAM_BYTES
from inlay.models.memory import device_free_bytes, free_memory_bytes, num_gpus

log = logging.getLogger(__name__)

_USUAL_SHARE = 0.9  # of a GPU's free memory
_USUAL_CONTEXT_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class Where:
    """What is loaded where. `placement` None: all of it on the device that was asked for."""

    placement: Placement | None
    weight_format: str


def place_model(config: EngineConfig, directory: Path, device: str) -> Where:
    """Follow a user's rules, or fill the GPUs; a CPU has all of a model.

    Args:
        device: `cpu`, `cuda` (all GPUs, as many as it takes) or `cuda:<n>`.

    Raises:
        ConfigError: settings for GPUs without one, or rules that do not fit.
        ResourceError: not enough memory.
    """
    asked = config.placement
    if device == CPU and asked.rules is None:
        for name in ("gpu_memory", "gpu_experts"):
            if getattr(asked, name):
                raise ConfigError(
                    f"placement.{name} says what goes to a GPU, and the device is cpu: leave it out"
                )
        return Where(placement=None, weight_format=config.weight_format)
    shape = read_shape(directory)
    gpus = _gpus(device)
    if asked.rules is not None:
        return _by_rules(config, shape, Path(asked.rules).expanduser(), gpus)
    if not gpus:  # loading says so
        return Where(placement=None, weight_format=config.weight_format)
    weight_format = config.weight_format
    stored = shape.quantization
    if weight_format == "auto":
        weight_format = "bfloat16" if stored is None else stored.weight_format
    degree = asked.tensor_parallel
    placement = (fewest_gpus if degree == 1 else partial(shared_by_ranks, degree))(
        shape,
        weight_format,
        Budget(host_bytes=free_memory_bytes(), gpu_bytes=_budgets(gpus, asked.gpu_memory)),
        experts=asked.gpu_experts,
        context_tokens=config.max_context_tokens,
        step_tokens=config.scheduler.max_batch_tokens,
        stream_bytes=STREAM_BYTES if config.experts.stream else 0,
    )
    return Where(placement=placement, weight_format=config.weight_format)


def _gpus(device: str) -> list[str]:
    """The GPUs that a device means, of those that are there."""
    kind, _, number = device.partition(":")
    if kind == CPU:
        return []
    there = [f"cuda:{n}" for n in range(num_gpus())]
    return [name for name in there if name == device] if number else there


def _budgets(gpus: Sequence[str], gpu_memory: str | None) -> dict[str, int]:
    budgets = {}
    for gpu in gpus:
        free_bytes = device_free_bytes(gpu)
        budgets[gpu] = int(free_bytes * _USUAL_SHARE)
        if gpu_memory is not None:
            budgets[gpu] = parse_bytes(gpu_memory)
            if budgets[gpu] > free_bytes:
                raise ResourceError(
                    f"placement.gpu_memory is {gpu_memory}, and {format_bytes(free_bytes)} are "
                    f"free on {gpu}: set placement.gpu_memory="
                    f"{size_to_set(free_bytes * _USUAL_SHARE, up=False)}, or close other programs"
                )
    return budgets


def _by_rules(config: EngineConfig, shape: ModelShape, file: Path, gpus: Sequence[str]) -> Where:
    placed = place_by_rules(shape, read_rules(file), (CPU, *gpus))
    for note in placed.notes:
        log.info("%s: %s", file, note)
    weight_format = config.weight_format
    if weight_format == "auto" and placed.experts_format is not None:
        weight_format = f"{placed.experts_format}+bfloat16"
    return Where(placement=placed.placement, weight_format=weight_format)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Memory that a model may take.

    Attributes:
        host_bytes: of the host.
        gpu_bytes: of each GPU by its name.
    """

    host_bytes: int
    gpu_bytes: dict[str, int]


def fewest_gpus(
    shape: ModelShape,
    weight_format: str,
    budget: Budget,
    *,
    experts: int | None,
    context_tokens: int | None,
    step_tokens: int,
    stream_bytes: int = 0,
) -> Placement:
    """On the first GPU, if it has room for all that is to be on GPUs; else on all of them.

    Args:
        experts: of each layer that GPUs are to keep; None: all, or as many as have room.
        stream_bytes: of each GPU, kept for the experts that come there for long prompts.

    Others and errors are those of `choose_placement`.

    Raises:
        ConfigError: a layer has fewer experts.
        ResourceError: so many have no room.
    """
    wanted = shape.experts if experts is None else experts
    if wanted > shape.experts:
        raise ConfigError(
            f"placement.gpu_experts must be at most {shape.experts}, as many as a layer of this "
            f"model has, got {wanted}"
        )
    choose = partial(
        choose_placement,
        shape,
        weight_format,
        experts=experts,
        context_tokens=context_tokens,
        step_tokens=step_tokens,
    )
    first, *others = budget.gpu_bytes
    if others:
        with suppress(ResourceError):
            placement = choose(replace(budget, gpu_bytes={first: budget.gpu_bytes[first]}))
            if CPU not in placement.devices and _resident(placement, shape) == wanted:
                return placement
    placement = choose(budget)
    if stream_bytes and shape.experts and _resident(placement, shape) < shape.experts:
        less = {name: size - stream_bytes for name, size in budget.gpu_bytes.items()}
        with suppress(ResourceError):
            placement = choose(replace(budget, gpu_bytes=less))
    resident = _resident(placement, shape)
    if experts is not None and resident < experts:
        raise ResourceError(
            f"placement.gpu_experts is {experts}, and {resident} of each layer have room on "
            f"{', '.join(budget.gpu_bytes)} beside everything else: set "
            f"placement.gpu_experts={resident}, give more with placement.gpu_memory, or shorten "
            "max_context_tokens"
        )
    return placement


def shared_by_ranks(
    degree: int, shape: ModelShape, weight_format: str, budget: Budget, **more: Any
) -> Placement:
    """Where one rank's part of all layers goes, on the first GPU; the others' are alike.

    Args:
        more: as `fewest_gpus`.

    Raises:
        ConfigError: so many cannot share the model.
        ResourceError: fewer GPUs, or too little memory on one.
    """
    gpus = list(budget.gpu_bytes.items())[:degree]
    if len(gpus) < degree:
        raise ResourceError(
            f"placement.tensor_parallel={degree} needs as many GPUs, and this machine has "
            f"{len(gpus)}: set placement.tensor_parallel={len(gpus)}"
        )
    # Whole experts are the host's, of which a rank's shape has a part.
    each = Budget(
        host_bytes=budget.host_bytes // degree,
        gpu_bytes={gpus[0][0]: min(size for _, size in gpus)},
    )
    placement = fewest_gpus(shape_of_rank(shape, degree), weight_format, each, **more)
    on_gpu = sum(layer.device != CPU for layer in placement.layers)
    if on_gpu < shape.layers:
        raise ResourceError(
            f"a GPU has room for its part of {on_gpu} of {shape.layers} layers, and with "
            f"placement.tensor_parallel={degree} it has all: give more with placement.gpu_memory, "
            "shorten max_context_tokens, take a weight_format of fewer bits, or more GPUs"
        )
    return placement


def _resident(placement: Placement, shape: ModelShape) -> int:
    """The fewest experts of a layer that are on a GPU."""
    return min((placement.layers[number].resident for number in shape.sparse_layers), default=0)


def choose_placement(
    shape: ModelShape,
    weight_format: str,
    budget: Budget,
    *,
    experts: int | None = None,
    context_tokens: int | None,
    step_tokens: int,
) -> Placement:
    """Fill GPUs by intensity, as `inlay plan` does: cache and matrices, then routed experts.

    Args:
        weight_format: of the experts, or `EXPERTS+REST`; not `auto`.
        experts: of each layer, the most that GPUs keep; None: as many as have room.
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
    offload = place(
        shape,
        parts,
        machine,
        kv_tokens=kv_tokens,
        step_tokens=step_tokens,
        most_experts=experts,
    )
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
