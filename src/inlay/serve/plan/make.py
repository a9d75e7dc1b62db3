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
    most_that_fit,
    operator_sizes,
)
from inlay.core.placement import PrefillAt
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
from inlay.experts import Rule, RulePlacement, place_by_rules
from inlay.serve.plan.model import PlannedModel, choose_formats
from inlay.serve.plan.placing import Placing
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
        rules: what rules say of all modules; None: there are none, and cost decided.
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
    rules: RulePlacement | None = None


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
    rules: Sequence[Rule] | None = None,
) -> Plan:
    """Plan a model on a machine.

    Args:
        rules: what runs where; None: what the memory holds, by cost.

    Raises:
        ConfigError: no such format, a context that the model does not have, or rules that it or
            the machine cannot follow.
        ResourceError: the machine has too little memory; the message says what would fit.
    """
    if model.packed is not None:
        model.packed.check_format(model.name, weight_format)
    shape = model.shape
    ruled = None if rules is None else place_by_rules(shape, rules, machine.device_names)
    formats = choose_formats(model, weight_format, machine)
    if ruled and ruled.experts_format and weight_format == "auto" and model.packed is None:
        formats = replace(formats, experts=ruled.experts_format)
    parts = parts_of(shape, formats)
    context_tokens = choose_context(shape, context)
    placing = Placing(
        shape=shape, machine=machine, placement=None if ruled is None else ruled.placement
    )
    try:
        placement = placing.offload(parts, context_tokens)
    except ResourceError as error:
        raise ResourceError(
            f"{error}. {_what_fits(model, placing, parts, context_tokens)}"
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
        most_requests=_most_requests(placing, parts, context_tokens),
        prefill=tuple(
            prefill_speed(shape, parts, machine, placement, tokens, prefill_chunk)
            for tokens in prompts(context_tokens)
        ),
        decode=tuple(_decode_speeds(placing, parts, context_tokens)),
        together=work_together(shape, parts, machine, placement, context_tokens),
        rules=ruled,
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
    at = placement.prefill
    return _speed(shape, parts, machine, placement, steps, tokens=prompt_tokens, host_experts=at)


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
    at: PrefillAt = "auto" if placement.prefill == "auto" else "host"
    return _speed(shape, parts, machine, placement, [step], tokens=context_tokens, host_experts=at)


def _speed(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    placement: Offload,
    steps: Sequence[Step],
    *,
    tokens: int,
    host_experts: PrefillAt,
) -> Speed:
    """Of steps that follow one another."""
    expected, ideal = (
        [predict(shape, parts, one, placement.gpu_share, step, host_experts) for step in steps]
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


def _decode_speeds(placing: Placing, parts: Sequence[Part], context_tokens: int) -> list[Speed]:
    """Those numbers of requests that have room; each is placed anew."""
    return [
        decode_speed(placing.shape, parts, placing.machine, placement, context_tokens, requests)
        for requests in REQUESTS
        if (placement := placing.offload_requests(parts, context_tokens, requests))
    ]


def _most_requests(placing: Placing, parts: Sequence[Part], context_tokens: int) -> int:
    """How many requests have room at once, up to `MOST_REQUESTS`."""
    return most_that_fit(
        MOST_REQUESTS,
        lambda requests: placing.offload_requests(parts, context_tokens, requests) is not None,
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
    model: PlannedModel, placing: Placing, parts: Sequence[Part], context_tokens: int
) -> str:
    """A shorter context, a smaller format, or no rules; or what memory the smallest one needs."""
    shape, machine = model.shape, placing.machine
    ways = []
    shorter = placing.longest_context(parts, context_tokens)
    if shorter:
        ways.append(f"--context {shorter}")
    for weight_format in _SMALLER:
        smaller = parts_of(shape, choose_formats(model, weight_format, machine))
        if _stored(smaller) >= _stored(parts):
            continue
        longest = placing.longest_context(smaller, context_tokens)
        if longest:
            shortened = "" if longest == context_tokens else f" --context {longest}"
            ways.append(f"{model.held_as(weight_format)}{shortened}")
    if placing.placement is not None:
        by_cost = replace(placing, placement=None).longest_context(parts, context_tokens)
        if by_cost == context_tokens:
            ways.append("the same without --rules")
    if ways:
        return f"What fits: {'; or '.join(ways)}"
    smallest = parts_of(shape, choose_formats(model, _SMALLER[-1], machine))
    these = "" if placing.placement is None else " these rules"
    return (
        f"No format fits{these}: with {_SMALLER[-1]} the weights alone take "
        f"{_stored(smallest) / 1e9:.1f} GB; take a smaller model or a machine with more memory"
    )


def _stored(parts: Sequence[Part]) -> float:
    return sum(part.stored_bytes for part in parts if part.operator != "attention")
