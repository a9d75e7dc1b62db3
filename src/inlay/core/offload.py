"""Which part of a model stays on the GPU and which goes to the host's memory, and whether it fits.

What does the most operations per byte that it occupies stays longest: the attention core, then the
matrices that every token passes, then routed experts, of which a token uses few. Without room for
all of the first two, whole layers of both stay, as many as fit. The host has a copy of what GPUs
keep of a layer's experts, unless they keep all: which ones they keep changes while a model serves.
Pure; `inlay.core.roofline` says
what the outcome takes.

Source: KTransformers (SOSP 2025), offloading by arithmetic intensity.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inlay.core.errors import ResourceError
from inlay.core.hardware import Machine
from inlay.core.model_shape import ModelShape
from inlay.core.placement import PrefillAt
from inlay.core.roofline import Kind, Operator, Part, Step, work_of

PROCESS_BYTES = 0.17e9
"""What an engine holds besides a model and activations, as measured."""
HOST_RESERVE_BYTES = 1.83e9
"""Left to the server in front of it, to the system and to other programs, an assumption."""
GPU_RESERVE_BYTES = 1e9
"""For the driver's context and the libraries on each GPU, an assumption."""

STEP_TOKENS = 1024
"""Most tokens of a step, as an engine has it by default."""

_OPERATORS: tuple[Operator, ...] = ("attention", "linears", "experts")


@dataclass(frozen=True, kw_only=True)
class OperatorSize:
    """What an operator is, and what it does when a request decodes one token.

    Attributes:
        elements: weights; of the attention core, cached elements of the whole context.
        stored_bytes: what they take.
        flops, read_bytes: of one token.
    """

    operator: Operator
    elements: int
    stored_bytes: float
    flops: float
    read_bytes: float

    @property
    def intensity(self) -> float:
        """Operations per byte read."""
        return self.flops / self.read_bytes if self.read_bytes else 0.0

    @property
    def per_stored_byte(self) -> float:
        """Operations per byte occupied: the least leaves the GPU first."""
        return self.flops / self.stored_bytes if self.stored_bytes else 0.0


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """What lies in the memory of the host, or of all GPUs, or of one.

    Attributes:
        name: of the one device; empty: all of the kind.
        working_bytes: activations of a step, and the process itself.
        reserve_bytes: left to others.
    """

    device: Kind
    name: str = ""
    weights_bytes: float
    kv_bytes: float
    working_bytes: float
    reserve_bytes: float
    capacity_bytes: float

    @property
    def held_bytes(self) -> float:
        """What Inlay takes."""
        return self.weights_bytes + self.kv_bytes + self.working_bytes

    @property
    def total_bytes(self) -> float:
        """All together."""
        return self.held_bytes + self.reserve_bytes


@dataclass(frozen=True, kw_only=True)
class Offload:
    """Where everything lies.

    Attributes:
        gpu_share: how much of each part is on the GPUs; of the attention core, of its cache.
        gpu_layers: layers whose attention and matrices are there.
        gpu_experts: experts of each sparse layer that are there, on average.
        uses: the host first.
        prefill: where host experts compute prompts.
    """

    gpu_share: dict[str, float]
    gpu_layers: int
    gpu_experts: int
    uses: tuple[MemoryUse, ...]
    prefill: PrefillAt = "auto"


def operator_sizes(
    shape: ModelShape, parts: Sequence[Part], context_tokens: int
) -> tuple[OperatorSize, ...]:
    """All operators that the model has, the one that keeps its place on the GPU longest first."""
    step = Step(new_tokens=1, cached_tokens=max(0, context_tokens - 1))
    found = []
    for operator in _OPERATORS:
        own = [part for part in parts if part.operator == operator]
        times = context_tokens if operator == "attention" else 1
        work = [work_of(shape, part, step) for part in own]
        if own:
            found.append(
                OperatorSize(
                    operator=operator,
                    elements=times * sum(part.elements for part in own),
                    stored_bytes=times * sum(part.stored_bytes for part in own),
                    flops=sum(one.flops for one in work),
                    read_bytes=sum(one.read_bytes for one in work),
                )
            )
    return tuple(sorted(found, key=lambda size: size.per_stored_byte, reverse=True))


def activation_bytes(shape: ModelShape, tokens: int) -> float:
    """About what a step over so many tokens needs beside weights and cache: float32 rows."""
    mla = shape.mla
    queries = shape.heads * (mla.kv_rank + mla.rope_dim if mla else shape.head_dim)
    experts = shape.experts_per_token * shape.moe_intermediate + shape.shared_intermediate
    row = 4 * shape.hidden + 2 * queries + 2 * max(shape.intermediate, experts)
    return 4.0 * tokens * row


def place(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    *,
    kv_tokens: int,
    step_tokens: int = STEP_TOKENS,
    most_experts: int | None = None,
) -> Offload:
    """Fill the GPUs by intensity and the host with the rest.

    Args:
        kv_tokens: of all requests, for which the cache has room.
        step_tokens: most tokens of a step, for activations.
        most_experts: of each layer on GPUs; None: as many as have room.

    Raises:
        ResourceError: it does not fit; the message says what is needed and what is there.
    """
    stored = {
        part.name: part.stored_bytes * (kv_tokens if part.operator == "attention" else 1)
        for part in parts
    }
    operator_of = {part.name: part.operator for part in parts}
    activations = activation_bytes(shape, step_tokens)
    # Rows of the embedding are looked up, never multiplied: they stay with the host.
    layered = [name for name in stored if operator_of[name] != "experts" and name != "embedding"]
    layered_bytes = sum(stored[name] for name in layered)
    share = dict.fromkeys(stored, 0.0)
    gpu_layers = gpu_experts = 0
    capacity = sum(gpu.memory_bytes for gpu in machine.gpus)
    gpu_working = activations + GPU_RESERVE_BYTES * len(machine.gpus) if machine.gpus else 0.0
    room = capacity - gpu_working
    if machine.gpus and room > 0:
        gpu_layers = min(shape.layers, int(shape.layers * room / layered_bytes))
        share |= dict.fromkeys(layered, gpu_layers / shape.layers)
    if gpu_layers == shape.layers and "routed experts" in stored:
        each = stored["routed experts"] / shape.experts
        most = shape.experts if most_experts is None else min(most_experts, shape.experts)
        gpu_experts = min(most, int((room - layered_bytes) / each))
        share["routed experts"] = gpu_experts / shape.experts
    on_gpu = {name: size * share[name] for name, size in stored.items()}
    on_host = {name: size - on_gpu[name] for name, size in stored.items()}
    if gpu_experts < shape.experts:
        on_host["routed experts"] = stored["routed experts"]
    host = MemoryUse(
        device="cpu",
        weights_bytes=sum(size for name, size in on_host.items() if name != "attention core"),
        kv_bytes=on_host.get("attention core", 0.0),
        working_bytes=activations + PROCESS_BYTES,
        reserve_bytes=HOST_RESERVE_BYTES,
        capacity_bytes=machine.host.memory_bytes,
    )
    if host.total_bytes > host.capacity_bytes:
        raise ResourceError(host_shortage(machine, host, sum(on_gpu.values())))
    uses = [host]
    if machine.gpus:
        uses.append(
            MemoryUse(
                device="gpu",
                weights_bytes=sum(on_gpu.values()) - on_gpu.get("attention core", 0.0),
                kv_bytes=on_gpu.get("attention core", 0.0),
                working_bytes=gpu_working,
                reserve_bytes=0.0,
                capacity_bytes=capacity,
            )
        )
    return Offload(
        gpu_share=share, gpu_layers=gpu_layers, gpu_experts=gpu_experts, uses=tuple(uses)
    )


def host_shortage(machine: Machine, host: MemoryUse, on_gpu: float) -> str:
    """The message where main memory is too small; `on_gpu` bytes lie on GPUs."""
    beside = f" beside {on_gpu / 1e9:.1f} GB on its GPUs" if on_gpu else ""
    weights, kv = host.weights_bytes / 1e9, host.kv_bytes / 1e9
    other = (host.working_bytes + host.reserve_bytes) / 1e9
    return (
        f"{machine.name} has {host.capacity_bytes / 1e9:.1f} GB of main memory, and "
        f"{host.total_bytes / 1e9:.1f} GB are needed{beside}: weights {weights:.1f}, keys and "
        f"values {kv:.1f}, the rest {other:.1f}"
    )


def most_that_fit(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which `fits` holds, as it does for all below; or 0."""
    return bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))


def longest_context(place_tokens: Callable[[int], Offload], most_tokens: int) -> int:
    """The longest context, up to `most_tokens`, for which there is a place; 0: there is none.

    Args:
        place_tokens: raises ResourceError where the cache of so many tokens does not fit.
    """

    def fits(tokens: int) -> bool:
        try:
            place_tokens(tokens)
        except ResourceError:
            return False
        return True

    return most_that_fit(most_tokens, fits)
