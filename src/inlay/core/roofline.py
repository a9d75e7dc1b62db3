"""What a step of a model takes on a machine: bytes over bandwidth or operations over peak.

    parts = parts_of(shape, formats)
    step = Step(new_tokens=1, cached_tokens=4096)
    prediction = predict(shape, parts, machine, gpu_share, step)

Each part of a model reads its bytes and does its operations on one device; it takes the longer of
the two there, times what kernels are known to reach. Parts follow one another as in a layer, but
routed experts on the processors run beside what the GPU does for the same tokens. Left out: reading
and writing activations, launches, waiting for one another; that every expert is as likely as the
next; that several GPUs could work at the same time. Pure, for serving, planning and simulating.

Source: roofline (Williams, Waterman, Patterson, CACM 2009).
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from inlay.core.errors import ArgumentError
from inlay.core.hardware import Device, Machine
from inlay.core.model_shape import ModelShape
from inlay.core.placement import PrefillAt
from inlay.core.weight_format import BLOCK_FORMATS, FORMATS, format_named

Operator = Literal["attention", "linears", "experts"]
"""Parts that are placed together: the attention core (queries against cached keys and values, no
weights); norms, matrices that all tokens pass, and shared experts; routed experts."""

Limit = Literal["bandwidth", "compute", "link"]
Kind = Literal["cpu", "gpu"]

# What a format is multiplied as. GPUs widen integers, which save them memory alone.
_OPERANDS: dict[Kind, dict[str, str]] = {
    "cpu": {"float32": "fp32", "float16": "fp32", "int8": "int8", "int4": "int8", "uint4": "int8"},
    "gpu": {"float32": "fp32", "fp8": "fp8", "mxfp4": "fp4"},
}
# Where a device lacks an operand, it computes in the next one.
_WIDER = {"fp4": "fp8", "fp8": "bf16", "int8": "bf16", "bf16": "fp32"}

_ACTIVATION_BYTES = 4
"""Of one number that goes between host and GPU: rows cross as float32, which the kernels take."""

MOST_STREAM_TOKENS = 1 << 17
"""Longest step for which streaming is weighed."""


def bytes_per_weight(name: str) -> float:
    """Bytes of a weight in a format, its share of scales included.

    Raises:
        ArgumentError: there is no such format.
    """
    if name in FORMATS or name in BLOCK_FORMATS:
        return format_named(name).bytes_per_weight
    known = ", ".join(FORMATS)
    raise ArgumentError(f"format: must be one of {known}; got {name!r}")


@dataclass(frozen=True, kw_only=True)
class Formats:
    """How each kind of matrix is held, and the keys and values.

    Attributes:
        latent: what latent attention has for each head.
    """

    experts: str
    mlp: str
    attention: str
    latent: str = "bfloat16"
    router: str = "float32"
    head: str
    embedding: str = "bfloat16"
    kv: str = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of all layers together.

    Attributes:
        elements: weights; of the attention core, what a token leaves in the cache.
        format: of each element.
    """

    name: str
    operator: Operator
    elements: int
    format: str

    @property
    def stored_bytes(self) -> float:
        """What the weights take; of the attention core, one token's keys and values."""
        return self.elements * bytes_per_weight(self.format)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pass: `requests` requests alike, each with `new_tokens` over `cached_tokens`."""

    new_tokens: int
    cached_tokens: int = 0
    requests: int = 1

    def __post_init__(self) -> None:
        if self.new_tokens < 1 or self.requests < 1 or self.cached_tokens < 0:
            raise ArgumentError(f"a step needs tokens and requests, got {self}")

    @property
    def tokens(self) -> int:
        """All that are computed."""
        return self.new_tokens * self.requests


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations (a multiply-add is two) and bytes read from memory."""

    flops: float
    read_bytes: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.read_bytes if self.read_bytes else 0.0


@dataclass(frozen=True, kw_only=True)
class PartTime:
    """What a part takes.

    Attributes:
        device: where it runs.
        limit: what bounds it.
        hidden: another device takes longer at the same time, so the step is not longer for it.
    """

    name: str
    operator: Operator
    device: Kind
    seconds: float
    limit: Limit
    hidden: bool = False


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a step takes, and all its parts in the order of a layer."""

    step: Step
    seconds: float
    times: tuple[PartTime, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all requests per second."""
        return self.step.tokens / self.seconds

    @property
    def bound(self) -> PartTime:
        """The part that takes longest of those that the step waits for."""
        return max((time for time in self.times if not time.hidden), key=lambda one: one.seconds)


def parts_of(shape: ModelShape, formats: Formats) -> tuple[Part, ...]:
    """All parts of a model, in the order in which a token passes them."""
    sparse = len(shape.sparse_layers)
    dense = shape.layers - sparse
    mla = shape.mla
    of_head = mla.kv_rank * (mla.nope_dim + mla.value_dim) if mla else 0
    latent = shape.layers * shape.heads * of_head
    matrices: tuple[tuple[str, Operator, int, str], ...] = (
        ("embedding", "linears", shape.vocab * shape.hidden, formats.embedding),
        ("norms", "linears", (2 * shape.layers + 1) * shape.hidden, "float32"),
        (
            "attention projections",
            "linears",
            shape.layers * shape.attention_parameters - latent,
            formats.attention,
        ),
        ("latent projections", "linears", latent, formats.latent),
        ("attention core", "attention", shape.layers * shape.kv_width, formats.kv),
        ("dense MLPs", "linears", dense * shape.mlp_parameters, formats.mlp),
        ("routers", "linears", sparse * shape.router_parameters, formats.router),
        ("shared experts", "linears", sparse * shape.shared_parameters, formats.mlp),
        (
            "routed experts",
            "experts",
            sparse * shape.experts * shape.expert_parameters,
            formats.experts,
        ),
        ("output matrix", "linears", shape.vocab * shape.hidden, formats.head),
    )
    return tuple(
        Part(name=name, operator=operator, elements=elements, format=held)
        for name, operator, elements, held in matrices
        if elements and not (name == "embedding" and shape.tie_embeddings)
    )


def expected_experts(experts: float, per_token: float, tokens: int) -> float:
    """Distinct experts that `tokens` tokens choose, each `per_token` of `experts` at random."""
    return experts * (1 - (1 - per_token / experts) ** tokens) if experts else 0.0


def work_of(shape: ModelShape, part: Part, step: Step) -> Work:
    """What a part does and reads in a step."""
    width = bytes_per_weight(part.format)
    if part.name == "attention core":
        return _attention(shape, width, step)
    if part.name == "embedding":
        return Work(flops=0, read_bytes=step.tokens * shape.hidden * width)
    if part.name == "output matrix":  # only the last token of a request needs it
        return Work(flops=2 * step.requests * part.elements, read_bytes=part.stored_bytes)
    if part.name == "routed experts":
        sparse = len(shape.sparse_layers)
        chosen = expected_experts(shape.experts, shape.experts_per_token, step.tokens)
        per_token = sparse * shape.experts_per_token * shape.expert_parameters
        return Work(
            flops=2 * step.tokens * per_token,
            read_bytes=sparse * chosen * shape.expert_parameters * width,
        )
    return Work(flops=2 * step.tokens * part.elements, read_bytes=part.stored_bytes)


def _attention(shape: ModelShape, width: float, step: Step) -> Work:
    """Scores and sums of values; with latents, both against the latent itself ("absorbed")."""
    if shape.mla:
        per_pair = 2 * shape.heads * (2 * shape.mla.kv_rank + shape.mla.rope_dim)
    else:
        per_pair = 4 * shape.heads * shape.head_dim
    pairs = rows = 0
    for window in shape.sliding_windows or (0,) * shape.layers:
        pairs += _pairs(step.new_tokens, step.cached_tokens, window)
        seen = step.cached_tokens + step.new_tokens
        rows += min(seen, window + step.new_tokens - 1) if window else seen
    return Work(
        flops=float(step.requests * pairs * per_pair),
        read_bytes=step.requests * rows * shape.kv_width * width,
    )


def _pairs(new: int, cached: int, window: int) -> int:
    """Pairs of a new token and one that it sees, itself among them, in one layer."""
    if not window or cached + new <= window:
        return new * cached + new * (new + 1) // 2
    growing = max(0, window - cached)  # the first of the new tokens see fewer than the window
    return growing * cached + growing * (growing + 1) // 2 + (new - growing) * window


def rates_on(device: Device, kind: Kind, part: Part) -> tuple[float, float]:
    """Bytes/s at which a device reads a part, and operations/s at which it computes it."""
    efficiency = device.efficiency
    operand = _operand(kind, part)
    if part.name == "attention core":
        read, compute = efficiency.attention_read, efficiency.attention_compute
    else:
        read, compute = (
            shares.get(part.format, shares.get(operand, 1.0))
            for shares in (efficiency.read, efficiency.compute)
        )
    while operand not in device.tflops and operand in _WIDER:
        operand = _WIDER[operand]
    if operand not in device.tflops:
        raise ArgumentError(f"{device.title}: tflops has none of fp32 and what {part.format} needs")
    return device.bandwidth_gbs * 1e9 * read, device.tflops[operand] * 1e12 * compute


def seconds_on(device: Device, kind: Kind, part: Part, work: Work) -> tuple[float, Limit]:
    """What a part takes on a device, and what bounds it there."""
    bytes_per_s, flops_per_s = rates_on(device, kind, part)
    read_s, compute_s = work.read_bytes / bytes_per_s, work.flops / flops_per_s
    return max(read_s, compute_s), "bandwidth" if read_s >= compute_s else "compute"


def _operand(kind: Kind, part: Part) -> str:
    if part.name == "attention core" and kind == "cpu":
        return "fp32"  # keys and values are widened as they are read
    name = part.format.split(":")[0]
    if kind == "cpu" and name in BLOCK_FORMATS:
        return "int8"
    return _OPERANDS[kind].get(name, "bf16")


def predict(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    gpu_share: Mapping[str, float],
    step: Step,
    host_experts: PrefillAt = "auto",
) -> Prediction:
    """What a step takes on a machine.

    Routed experts in the host's memory are computed by the processors, or their weights are brought
    to the GPU for this one step, which is quicker with many tokens.

    Args:
        gpu_share: how much of each part (by name) the GPUs hold, 0 to 1; the processors hold the
            rest.
        host_experts: where they are computed; `auto` is whichever ends first.

    Raises:
        ArgumentError: a share for a machine without GPUs, or out of 0..1.
    """
    for name, share in gpu_share.items():
        if not 0 <= share <= 1 or (share and not machine.gpus):
            raise ArgumentError(f"gpu_share: {share} of {name} cannot be on GPUs of {machine.name}")
    ways = {"host": (False,), "device": (True,), "auto": (False, True)}[host_experts]
    if not _can_bring(shape, machine, gpu_share):
        ways = (False,)
    return min(
        (_predict(shape, parts, machine, gpu_share, step, brought=brought) for brought in ways),
        key=lambda prediction: prediction.seconds,
    )


def stream_threshold_tokens(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    gpu_share: Mapping[str, float],
    *,
    most_tokens: int = MOST_STREAM_TOKENS,
) -> int | None:
    """From how many tokens of a step on it ends sooner if host experts are brought to the GPU.

    Attention takes the same either way, so what is cached changes nothing. Bringing an expert pays
    with enough tokens to compute with it, so once it pays it does for all longer steps.

    Args:
        gpu_share: as for `predict`.
        most_tokens: of a step.

    Returns:
        None where it never does: without a GPU or host experts, or over too slow a link.

    Cost: about two predictions for each doubling of `most_tokens`.
    """
    if not _can_bring(shape, machine, gpu_share):
        return None

    def pays(tokens: int) -> bool:
        computed, brought = (
            _predict(shape, parts, machine, gpu_share, Step(new_tokens=tokens), brought=brought)
            for brought in (False, True)
        )
        return brought.seconds < computed.seconds

    first = bisect_left(range(1, most_tokens + 1), True, key=pays) + 1
    return first if first <= most_tokens else None


def _can_bring(shape: ModelShape, machine: Machine, gpu_share: Mapping[str, float]) -> bool:
    on_host = bool(shape.experts) and gpu_share.get("routed experts", 0.0) < 1
    return on_host and machine.gpu is not None and machine.gpu.link_gbs > 0


def _predict(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    gpu_share: Mapping[str, float],
    step: Step,
    *,
    brought: bool,
) -> Prediction:
    serial: list[PartTime] = []
    beside: dict[Kind, list[PartTime]] = {"cpu": [], "gpu": []}
    for part in parts:
        share = gpu_share.get(part.name, 0.0)
        for time in _times(shape, part, machine, share, step, brought=brought):
            in_mixture = part.name in ("routed experts", "shared experts")
            (beside[time.device] if in_mixture else serial).append(time)
    crossing = gpu_share.get("attention projections", 0.0)
    if machine.gpu and crossing and beside["cpu"]:
        serial.append(_hand_over(shape, machine.gpu, crossing, step))
    sums = {kind: sum(time.seconds for time in times) for kind, times in beside.items()}
    slow: Kind = "cpu" if sums["cpu"] >= sums["gpu"] else "gpu"
    fast: Kind = "gpu" if slow == "cpu" else "cpu"
    hidden = [replace(time, hidden=True) for time in beside[fast]]
    return Prediction(
        step=step,
        seconds=sum(time.seconds for time in (*serial, *beside[slow])),
        times=(*serial, *beside[slow], *hidden),
    )


def _times(
    shape: ModelShape,
    part: Part,
    machine: Machine,
    share: float,
    step: Step,
    *,
    brought: bool,
) -> Iterator[PartTime]:
    """A part's times on the devices that hold some of it."""
    work, gpu = work_of(shape, part, step), machine.gpu

    def on(device: Kind, seconds: float, limit: Limit) -> PartTime:
        return PartTime(
            name=part.name, operator=part.operator, device=device, seconds=seconds, limit=limit
        )

    if share and gpu:
        yield on("gpu", *seconds_on(gpu, "gpu", part, _scaled(work, share)))
    rest = _scaled(work, 1 - share)
    if share < 1 and brought and gpu and part.name == "routed experts":
        computed, limit = seconds_on(gpu, "gpu", part, rest)
        over_link = rest.read_bytes / (gpu.link_gbs * 1e9)
        yield on("gpu", max(computed, over_link), "link" if over_link >= computed else limit)
    elif share < 1:
        yield on("cpu", *seconds_on(machine.host, "cpu", part, rest))


def _scaled(work: Work, share: float) -> Work:
    return Work(flops=work.flops * share, read_bytes=work.read_bytes * share)


def hand_over_seconds(shape: ModelShape, gpu: Device, tokens: int) -> float:
    """Rows of one layer on their way to the processors' experts, or their sums on the way back."""
    row_bytes = shape.hidden * _ACTIVATION_BYTES
    return tokens * row_bytes / (gpu.link_gbs * 1e9) if gpu.link_gbs else 0.0


def _hand_over(shape: ModelShape, gpu: Device, share: float, step: Step) -> PartTime:
    """There and back, once per sparse layer."""
    seconds = 2 * len(shape.sparse_layers) * share * hand_over_seconds(shape, gpu, step.tokens)
    return PartTime(
        name="activations", operator="experts", device="gpu", seconds=seconds, limit="link"
    )
