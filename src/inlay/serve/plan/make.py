"""A plan: placement, memory and speed of a model on a machine, and what would help most."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inlay.core.errors import ConfigError, ResourceError
from inlay.core.hardware import Efficiency, Machine
from inlay.core.model_shape import ModelShape
from inlay.core.offload import (
    Offload,
    OperatorSize,
    longest_context,
    most_that_fit,
    operator_sizes,
    place,
)
from inlay.core.roofline import (
    Formats,
    Kind,
    Limit,
    Operator,
    Part,
    Prediction,
    Step,
    parts_of,
    predict,
)
from inlay.serve.plan.model import PlannedModel, choose_formats
from inlay.serve.plan.together import Together, work_together

USUAL_CONTEXT_TOKENS = 8192
PROMPTS = (512, 2048, 8192)
REQUESTS = (1, 4, 16)
MOST_REQUESTS = 1024

# Formats to name where a model does not fit, the most exact first.
_SMALLER = ("bfloat16", "int8:g32", "int4:g32")


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What takes most of the time: an operator, where it runs, and of what there is too little."""

    operator: Operator
    device: Kind
    limit: Limit
    share: float


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Of a prompt, or of decoding.

    Attributes:
        tokens: of the prompt, or in the context of each request.
        requests: at the same time.
        seconds: of the prompt, or of a step.
        tokens_per_s: of all requests.
        roofline_tps: the same if kernels reached all of every rate.
    """

    tokens: int
    requests: int
    seconds: float
    tokens_per_s: float
    roofline_tps: float
    bound: Bound


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is known beforehand.

    Attributes:
        origin: where the machine's figures come from.
        weight_format: as the user named it; `formats` is what it means for each part.
        operators: the first keeps its place on the GPU longest.
        kv_token_bytes: of one token in the cache.
        most_requests: that have room at once with `context_tokens` each, up to `MOST_REQUESTS`;
            more would push layers from the GPU.
        prefill: of some prompts, one at a time.
        decode: of those `REQUESTS` that have room, with `context_tokens` each; nothing deferred.
        together: None where a GPU and the processors share no layer.
    """

    model: PlannedModel
    machine: Machine
    origin: str
    weight_format: str
    formats: Formats
    context_tokens: int
    prefill_chunk: int
    operators: tuple[OperatorSize, ...]
    placement: Offload
    kv_token_bytes: float
    most_requests: int
    prefill: tuple[Speed, ...]
    decode: tuple[Speed, ...]
    together: Together | None


def choose_context(shape: ModelShape, context: int | None) -> int:
    """The context to plan for.

    Raises:
        ConfigError: it is beyond what the model was made for.
    """
    most = shape.max_context_tokens
    if context is None:
        return min(USUAL_CONTEXT_TOKENS, most)
    if not 1 <= context <= most:
        raise ConfigError(f"--context {context}: must be in 1..{most}, what the model was made for")
    return context


def make_plan(
    model: PlannedModel,
    machine: Machine,
    *,
    origin: str,
    weight_format: str = "auto",
    context: int | None = None,
    prefill_chunk: int = 512,
) -> Plan:
    """Plan a model on a machine.

    Raises:
        ConfigError: no such format, or a context that the model does not have.
        ResourceError: the machine has too little memory; the message says what would fit.
    """
    if model.packed is not None:
        model.packed.check_format(model.name, weight_format)
    formats = choose_formats(model, weight_format, machine)
    shape, parts = model.shape, parts_of(model.shape, formats)
    context_tokens = choose_context(shape, context)
    try:
        placement = place(shape, parts, machine, kv_tokens=context_tokens)
    except ResourceError as error:
        raise ResourceError(
            f"{error}. {_what_fits(model, machine, parts, context_tokens)}"
        ) from None
    return Plan(
        model=model,
        machine=machine,
        origin=origin,
        weight_format=weight_format,
        formats=formats,
        context_tokens=context_tokens,
        prefill_chunk=prefill_chunk,
        operators=operator_sizes(shape, parts, context_tokens),
        placement=placement,
        kv_token_bytes=sum(part.stored_bytes for part in parts if part.operator == "attention"),
        most_requests=_most_requests(shape, parts, machine, context_tokens),
        prefill=tuple(
            prefill_speed(shape, parts, machine, placement, tokens, prefill_chunk)
            for tokens in prompts(context_tokens)
        ),
        decode=tuple(_decode_speeds(shape, parts, machine, context_tokens)),
        together=work_together(shape, parts, machine, placement, context_tokens),
    )


def prompts(context_tokens: int) -> tuple[int, ...]:
    """Lengths of prompts to plan for: those of `PROMPTS` that leave room, or else the context."""
    return tuple(tokens for tokens in PROMPTS if tokens <= context_tokens) or (context_tokens,)


def prefill_speed(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    placement: Offload,
    prompt_tokens: int,
    chunk_tokens: int,
) -> Speed:
    """A prompt in chunks, with nothing cached before."""
    steps = [
        Step(new_tokens=min(chunk_tokens, prompt_tokens - start), cached_tokens=start)
        for start in range(0, prompt_tokens, chunk_tokens)
    ]
    return _speed(shape, parts, machine, placement, steps, tokens=prompt_tokens)


def decode_speed(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    placement: Offload,
    context_tokens: int,
    requests: int = 1,
) -> Speed:
    """A step in which each of some requests with a full context gets one token."""
    step = Step(new_tokens=1, cached_tokens=context_tokens - 1, requests=requests)
    return _speed(shape, parts, machine, placement, [step], tokens=context_tokens)


def _speed(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    placement: Offload,
    steps: Sequence[Step],
    *,
    tokens: int,
) -> Speed:
    """Of steps that follow one another."""
    expected, ideal = (
        [predict(shape, parts, one, placement.gpu_share, step) for step in steps]
        for one in (machine, _ideal(machine))
    )
    computed = sum(step.tokens for step in steps)
    seconds = sum(step.seconds for step in expected)
    return Speed(
        tokens=tokens,
        requests=steps[0].requests,
        seconds=seconds,
        tokens_per_s=computed / seconds,
        roofline_tps=computed / sum(step.seconds for step in ideal),
        bound=_bound(expected),
    )


def _ideal(machine: Machine) -> Machine:
    """The machine if kernels reached all of its rates."""
    nodes, gpus = (
        tuple(replace(device, efficiency=Efficiency()) for device in devices)
        for devices in (machine.nodes, machine.gpus)
    )
    return replace(machine, nodes=nodes, gpus=gpus)


def _decode_speeds(
    shape: ModelShape, parts: Sequence[Part], machine: Machine, context_tokens: int
) -> list[Speed]:
    """Those numbers of requests that have room; each is placed anew."""
    return [
        decode_speed(shape, parts, machine, placement, context_tokens, requests)
        for requests in REQUESTS
        if (placement := _place_requests(shape, parts, machine, context_tokens, requests))
    ]


def _place_requests(
    shape: ModelShape, parts: Sequence[Part], machine: Machine, context_tokens: int, requests: int
) -> Offload | None:
    """None without room, also where layers would leave the GPU that stay there for one request."""
    try:
        one, many = (
            place(shape, parts, machine, kv_tokens=context_tokens * count)
            for count in (1, requests)
        )
    except ResourceError:
        return None
    return many if many.gpu_layers == one.gpu_layers else None


def _most_requests(
    shape: ModelShape, parts: Sequence[Part], machine: Machine, context_tokens: int
) -> int:
    """How many requests have room at once, up to `MOST_REQUESTS`."""
    return most_that_fit(
        MOST_REQUESTS,
        lambda requests: (
            _place_requests(shape, parts, machine, context_tokens, requests) is not None
        ),
    )


def _bound(steps: Sequence[Prediction]) -> Bound:
    sums: dict[tuple[Operator, Kind, Limit], float] = defaultdict(float)
    for step in steps:
        for time in step.times:
            if not time.hidden:
                sums[time.operator, time.device, time.limit] += time.seconds
    (operator, device, limit), most = max(sums.items(), key=lambda item: item[1])
    return Bound(operator=operator, device=device, limit=limit, share=most / sum(sums.values()))


def _what_fits(
    model: PlannedModel, machine: Machine, parts: Sequence[Part], context_tokens: int
) -> str:
    """A shorter context, or a smaller format; or what memory the smallest one needs."""
    shape = model.shape
    ways = []
    shorter = longest_context(shape, parts, machine, context_tokens)
    if shorter:
        ways.append(f"--context {shorter}")
    for weight_format in _SMALLER:
        smaller = parts_of(shape, choose_formats(model, weight_format, machine))
        if _stored(smaller) >= _stored(parts):
            continue
        longest = longest_context(shape, smaller, machine, context_tokens)
        if longest:
            shortened = "" if longest == context_tokens else f" --context {longest}"
            ways.append(f"{model.held_as(weight_format)}{shortened}")
    if ways:
        return f"What fits: {'; or '.join(ways)}"
    smallest = parts_of(shape, choose_formats(model, _SMALLER[-1], machine))
    return (
        f"No format fits: with {_SMALLER[-1]} the weights alone take {_stored(smallest) / 1e9:.1f} "
        "GB; take a smaller model or a machine with more memory"
    )


def _stored(parts: Sequence[Part]) -> float:
    return sum(part.stored_bytes for part in parts if part.operator != "attention")
