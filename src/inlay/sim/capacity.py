"""How many tokens' keys and values a design has room for: on GPUs, in hosts' memory, on disks."""

from dataclasses import dataclass

from inlay.core.errors import ResourceError
from inlay.core.model_shape import ModelShape
from inlay.core.offload import (
    GPU_RESERVE_BYTES,
    HOST_RESERVE_BYTES,
    PROCESS_BYTES,
    activation_bytes,
)
from inlay.core.roofline import Formats, Part, parts_of
from inlay.sim.design import InstanceDesign
from inlay.sim.tier import Tier, TierName

HOST_LATENCY_S = 20e-6
DISK_LATENCY_S = 100e-6
"""Assumptions: to start copies on all GPUs, and a read of a page by an NVMe disk."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What lies on each GPU, and what is left for tokens.

    Attributes:
        weights_bytes: of the GPU that has most.
        working_bytes: activations, and what the driver and libraries take.
        kv_bytes: what is left there for keys and values.
        gpu_token_bytes: of a token, on each GPU that has some of it.
        tokens: of all groups; each request's are in one.
    """

    weights_bytes: float
    working_bytes: float
    kv_bytes: float
    gpu_token_bytes: float
    tokens: int


def capacity(design: InstanceDesign) -> Capacity:
    """What a design's GPUs hold.

    Raises:
        ResourceError: there is no room for a chunk of a prompt beside the weights, or the host has
            none for its experts.
    """
    across, rank = design.parallelism, design.rank_shape
    layers = -(-rank.layers // across.pipeline)  # of the longest stage
    parts = {part.name: part for part in parts_of(rank, design.formats)}
    each = parts.pop("attention core").stored_bytes * layers / rank.layers
    weights = _weights(design, parts, layers)
    working = activation_bytes(rank, design.chunk_tokens) + GPU_RESERVE_BYTES
    room = design.gpu.memory_bytes - weights - working
    tokens = int(room // each)
    free, experts = _host_bytes(design)
    if experts > free:
        raise ResourceError(
            f"{design.machine.name}: {experts / 1e9:.1f} GB of experts on the host, which has "
            f"{free / 1e9:.1f} of {design.machine.host.memory_gb:.1f} left"
        )
    if tokens < design.chunk_tokens:
        raise ResourceError(
            f"{across.gpus} x {design.gpu.title}: {weights / 1e9:.1f} GB of weights and "
            f"{working / 1e9:.1f} for a step leave {room / 1e9:.1f} GB of each for keys and "
            f"values, a chunk of {design.chunk_tokens} tokens needs "
            f"{design.chunk_tokens * each / 1e9:.1f}: take more GPUs, shorter chunks or "
            "formats with fewer bits"
        )
    return Capacity(
        weights_bytes=weights,
        working_bytes=working,
        kv_bytes=room,
        gpu_token_bytes=each,
        tokens=across.data * tokens,
    )


def _weights(design: InstanceDesign, parts: dict[str, Part], layers: int) -> float:
    """Of the GPU that has most: the first stage has the embedding, the last the output matrix."""
    across, shape = design.parallelism, design.shape
    ends = [
        parts.pop(name).stored_bytes / across.tensor
        for name in ("embedding", "output matrix")
        if name in parts
    ]
    total = sum(part.stored_bytes for part in parts.values())
    if across.whole_experts:
        copies = 1 + across.redundant_experts / shape.experts
        total -= parts["routed experts"].stored_bytes * (1 - copies / across.stage_gpus)
    if design.host_share:
        total -= parts["routed experts"].stored_bytes * design.host_share
    return total * layers / shape.layers + (sum(ends) if across.pipeline == 1 else max(ends))


def tiers(design: InstanceDesign, share: float = 1.0) -> tuple[Tier, ...]:
    """What memory and disks of a design's machines hold, and how fast they are read.

    Of a machine an instance has what `InstanceDesign.hosts` says. Each token is there once,
    whatever GPUs have copies of it. That writing is as fast as reading is an assumption.

    Args:
        share: of what is free beside experts, 0 to 1.

    Returns:
        In the order of their rates as machines have them; those with no room are left out.
    """
    machine = design.machine
    free, experts = _host_bytes(design)
    links = design.parallelism.gpus * design.gpu.link_gbs
    read = min(links, design.hosts * machine.host.bandwidth_gbs)
    disk = min(read, design.hosts * machine.disk_gbs)
    sizes: tuple[tuple[TierName, float, float, float], ...] = (
        ("host", free - experts, read, HOST_LATENCY_S),
        ("disk", design.hosts * machine.disk_gb * 1e9, disk, DISK_LATENCY_S),
    )
    return tuple(
        Tier(
            name=name,
            tokens=tokens,
            read_bytes_per_s=rate * 1e9,
            write_bytes_per_s=rate * 1e9,
            latency_s=latency_s,
        )
        for name, size, rate, latency_s in sizes
        if (tokens := int(share * size // token_bytes(design))) > 0 and rate > 0
    )


def _host_bytes(design: InstanceDesign) -> tuple[float, float]:
    """What is free of an instance's share of its machines, and what its experts take of that."""
    machine = design.machine
    free = machine.host.memory_bytes - PROCESS_BYTES - HOST_RESERVE_BYTES
    parts = parts_of(design.shape, design.formats)
    experts = sum(part.stored_bytes for part in parts if part.operator == "experts")
    return (
        free * design.hosts,
        experts if design.host_share else 0.0,
    )


def token_bytes(design: InstanceDesign) -> float:
    """Keys and values of a token, all layers, each once."""
    return token_bytes_of(design.shape, design.formats)


def token_bytes_of(shape: ModelShape, formats: Formats) -> float:
    """`token_bytes` of a model that is on no hardware yet."""
    (core,) = (part for part in parts_of(shape, formats) if part.name == "attention core")
    return core.stored_bytes
