"""What would help most, found by planning again with one thing changed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from inlay.core.errors import ResourceError
from inlay.core.hardware import Device, Machine, catalogue_gpus
from inlay.core.offload import STEP_TOKENS
from inlay.core.placement import Placement
from inlay.core.roofline import Formats, parts_of
from inlay.serve.plan.make import Plan, decode_speed, prefill_speed
from inlay.serve.plan.model import choose_formats
from inlay.serve.plan.placing import Placing

_FORMATS = ("int8:g32", "int4:g32")
_CHUNKS = (2048, 8192)
_CHUNK_SETTINGS = "prefill_chunk, max_batch_tokens"
_NOTICEABLE = 1.02
_GPU = "4090"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing changed.

    Attributes:
        what: it is.
        decode_times, prefill_times: speed of one request beside the plan's; of its longest prompt.
        decode_tps, prefill_tps: tokens per second then.
    """

    what: str
    decode_times: float
    prefill_times: float
    decode_tps: float
    prefill_tps: float


def find_changes(plan: Plan) -> list[Change]:
    """What makes decoding or the longest prompt at least 2 % faster, the best for both first."""
    shape, prompt = plan.model.shape, plan.prefill[-1]
    found = []
    for what, formats, machine, chunk, placement in _trials(plan):
        parts = parts_of(shape, formats)
        placing = Placing(shape=shape, machine=machine, placement=placement)
        try:
            offload = placing.offload(parts, plan.context_tokens, max(chunk, STEP_TOKENS))
        except ResourceError:
            continue
        decode = decode_speed(shape, parts, machine, offload, plan.context_tokens)
        prefill = prefill_speed(shape, parts, machine, offload, prompt.tokens, chunk)
        found.append(
            Change(
                what=what,
                decode_times=decode.tokens_per_s / plan.decode[0].tokens_per_s,
                prefill_times=prefill.tokens_per_s / prompt.tokens_per_s,
                decode_tps=decode.tokens_per_s,
                prefill_tps=prefill.tokens_per_s,
            )
        )
    helping = [one for one in found if max(one.decode_times, one.prefill_times) >= _NOTICEABLE]
    return sorted(helping, key=lambda one: one.decode_times * one.prefill_times, reverse=True)


def _trials(plan: Plan) -> Iterator[tuple[str, Formats, Machine, int, Placement | None]]:
    machine, formats, chunk = plan.machine, plan.formats, plan.prefill_chunk
    placement = None if plan.rules is None else plan.rules.placement
    stored = sum(part.stored_bytes for part in parts_of(plan.model.shape, formats))
    for name in _FORMATS:
        smaller = choose_formats(plan.model, name, machine)
        if sum(part.stored_bytes for part in parts_of(plan.model.shape, smaller)) < stored:
            yield plan.model.held_as(name), smaller, machine, chunk, placement
    for longer in _CHUNKS:
        if chunk < longer <= plan.prefill[-1].tokens:
            what = f"steps of {longer} prompt tokens, not {chunk} ({_CHUNK_SETTINGS})"
            yield what, formats, machine, longer, placement
    if placement is not None:
        yield "places by cost, without --rules", formats, machine, chunk, None
    for what, other in _machines(machine):
        yield what, formats, other, chunk, placement


def _machines(machine: Machine) -> Iterator[tuple[str, Machine]]:
    nodes, gpus = machine.nodes, machine.gpus

    def with_nodes(**times: float) -> Machine:
        return replace(machine, nodes=tuple(_scaled(node, **times) for node in nodes))

    yield "half as many memory channels again (8 to 12)", with_nodes(bandwidth=1.5)
    yield "processors that compute twice as much", with_nodes(compute=2)
    yield "as many sockets again", replace(machine, nodes=nodes * 2)
    if not gpus:
        gpu = catalogue_gpus()[_GPU]
        yield f"a GPU: {gpu.title}", replace(machine, gpus=(gpu,))
        return
    larger = tuple(_scaled(gpu, memory=2) for gpu in gpus)
    yield "GPUs with twice the memory", replace(machine, gpus=larger)
    faster = tuple(_scaled(gpu, bandwidth=2, compute=2) for gpu in gpus)
    yield "GPUs twice as fast", replace(machine, gpus=faster)
    linked = tuple(_scaled(gpu, link=2) for gpu in gpus)
    yield "a link to the GPUs twice as fast", replace(machine, gpus=linked)


def _scaled(
    device: Device,
    *,
    memory: float = 1,
    bandwidth: float = 1,
    compute: float = 1,
    link: float = 1,
) -> Device:
    return replace(
        device,
        memory_gb=device.memory_gb * memory,
        bandwidth_gbs=device.bandwidth_gbs * bandwidth,
        tflops={operand: rate * compute for operand, rate in device.tflops.items()},
        link_gbs=device.link_gbs * link,
    )
