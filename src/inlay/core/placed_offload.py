"""What lies where under a given placement, and whether it fits.

The counterpart of `inlay.core.offload.place`, which chooses by cost: here somebody else has chosen,
a user by rules or an engine by what it measured. Pure.
"""

from collections import defaultdict
from collections.abc import Sequence

from inlay.core.errors import ArgumentError, ConfigError, ResourceError
from inlay.core.hardware import Machine
from inlay.core.model_shape import ModelShape
from inlay.core.offload import (
    GPU_RESERVE_BYTES,
    HOST_RESERVE_BYTES,
    PROCESS_BYTES,
    STEP_TOKENS,
    MemoryUse,
    Offload,
    activation_bytes,
    host_shortage,
)
from inlay.core.placement import CPU, Placement
from inlay.core.roofline import Part

_SPARSE = ("routers", "shared experts", "routed experts")
_DENSE = ("dense MLPs",)


def offload_of(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    placement: Placement,
    *,
    kv_tokens: int,
    step_tokens: int = STEP_TOKENS,
) -> Offload:
    """What a placement takes of each device.

    Experts that are brought to a device for one step are not counted there.

    Args:
        kv_tokens, step_tokens: as for `place`.

    Returns:
        `uses` has the host and each device that the placement names, in their order.

    Raises:
        ArgumentError: the placement has more or fewer layers than the model.
        ConfigError: it names a device that the machine does not have.
        ResourceError: a device's memory does not hold what is on it; the message has the values.
    """
    layers = placement.layers
    if len(layers) != shape.layers:
        raise ArgumentError(f"placement: has {len(layers)} layers, the model {shape.layers}")
    gpus = dict(zip(machine.device_names[1:], machine.gpus, strict=True))
    for device in placement.devices:
        if device != CPU and device not in gpus:
            have = ", ".join(machine.device_names)
            raise ConfigError(f"the placement uses {device}, and {machine.name} has {have}")
    held: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    gpu_share = {}
    for part in parts:
        stored = part.stored_bytes * (kv_tokens if part.operator == "attention" else 1)
        shares = _shares(shape, part, placement)
        gpu_share[part.name] = 1 - shares.get(CPU, 0.0)
        for device, share in shares.items():
            held[device][part.name] += stored * share
        if part.name == "routed experts":
            held[CPU][part.name] += stored * _copied_share(shape, placement)
    activations = activation_bytes(shape, step_tokens)
    uses = []
    for device in sorted({CPU, *placement.devices}, key=machine.device_names.index):
        own = held[device]
        kv_bytes = own.get("attention core", 0.0)
        on_host = device == CPU
        use = MemoryUse(
            device="cpu" if on_host else "gpu",
            name=device,
            weights_bytes=sum(own.values()) - kv_bytes,
            kv_bytes=kv_bytes,
            working_bytes=activations + (PROCESS_BYTES if on_host else GPU_RESERVE_BYTES),
            reserve_bytes=HOST_RESERVE_BYTES if on_host else 0.0,
            capacity_bytes=machine.host.memory_bytes if on_host else gpus[device].memory_bytes,
        )
        if use.total_bytes > use.capacity_bytes:
            on_gpus = sum(sum(held[name].values()) for name in placement.devices if name != CPU)
            raise ResourceError(
                host_shortage(machine, use, on_gpus)
                if on_host
                else _shortage(use, placement, own.get("routed experts", 0.0))
            )
        uses.append(use)
    modes = {layers[layer].prefill for layer in shape.sparse_layers}
    sparse = max(1, len(shape.sparse_layers))
    return Offload(
        gpu_share=gpu_share,
        gpu_layers=sum(layer.device != CPU for layer in layers),
        gpu_experts=sum(layer.resident for layer in layers) // sparse,
        uses=tuple(uses),
        prefill=modes.pop() if len(modes) == 1 else "auto",
    )


def _shares(shape: ModelShape, part: Part, placement: Placement) -> dict[str, float]:
    """How much of a part is on which device; all together 1."""
    layers = placement.layers
    if part.name == "embedding":
        return {CPU: 1.0}
    if part.name == "output matrix":
        return {layers[-1].device: 1.0}
    sparse = set(shape.sparse_layers)
    if part.name in _SPARSE:
        own = sorted(sparse)
    elif part.name in _DENSE:
        own = [layer for layer in range(shape.layers) if layer not in sparse]
    else:
        own = list(range(shape.layers))
    each = shape.experts if part.name == "routed experts" else 1
    found: dict[str, int] = defaultdict(int)
    for layer in own:
        there = layers[layer].resident if part.name == "routed experts" else 1
        found[layers[layer].device] += there
        found[CPU] += each - there
    return {device: count / (each * len(own)) for device, count in found.items() if count}


def _copied_share(shape: ModelShape, placement: Placement) -> float:
    """How much of all routed experts the host has besides a device: of layers that both have."""
    residents = [placement.layers[layer].resident for layer in shape.sparse_layers]
    copied = sum(resident for resident in residents if resident < shape.experts)
    return copied / (shape.experts * len(residents))


def _shortage(use: MemoryUse, placement: Placement, experts_bytes: float) -> str:
    count = sum(layer.device == use.name for layer in placement.layers)
    advice = (
        "leave routed experts to the CPU, or put fewer layers there"
        if experts_bytes
        else "put fewer layers there, or hold them in fewer bits"
    )
    return (
        f"{use.name} has {use.capacity_bytes / 1e9:.1f} GB, and {use.total_bytes / 1e9:.1f} GB are "
        f"needed for the {count} layers on it: routed experts {experts_bytes / 1e9:.1f}, other "
        f"weights {(use.weights_bytes - experts_bytes) / 1e9:.1f}, keys and values "
        f"{use.kv_bytes / 1e9:.1f}, the rest {use.working_bytes / 1e9:.1f}; {advice}"
    )
