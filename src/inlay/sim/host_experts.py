"""Routed experts in the host's memory, which the processors compute beside the GPU.

As in `core.roofline` the processors have their part of a layer's mixture while the GPU has shared
and resident experts, or for prompts weights are brought to the GPU, whichever takes a full chunk
less; shorter chunks are then computed so, too. Each of several GPUs brings its part of an expert's
width.

With deferral the processors have a part of a decode's experts while the GPU is on its way to the
next mixture: a layer takes as long as the slower of both, as in `core.deferral` after its first
ones. How many experts are read is divided as tokens' choices are, which is a little less than it
is.

Source: KTransformers (SOSP 2025), expert deferral.
"""

from collections.abc import Mapping, Sequence

from inlay.core.roofline import (
    Step,
    expected_experts,
    hand_over_seconds,
    parts_of,
    rates_on,
    work_of,
)
from inlay.sim.design import InstanceDesign
from inlay.sim.forms import EXPERTS, PROMPT, ROWS, TOKENS, FormRow, Part, form, longest, summed
from inlay.sim.operators import ROUTED, SHARED


def beside_host(design: InstanceDesign, on_gpu: Mapping[str, Part]) -> list[Part]:
    """Parts of a step, from those that it would have with all experts on the GPU.

    Args:
        on_gpu: as `operators` has them.
    """
    ways = [_step(design, on_gpu, brought=False)]
    if design.gpu.link_gbs:
        ways.append(_step(design, on_gpu, brought=True))
    shape, chunk = design.shape, design.chunk_tokens
    chunk_F = form(
        prefill_step=1,
        prefill_token=chunk,
        prefill_pair=chunk * (chunk + 1) / 2,
        expert=expected_experts(shape.experts, shape.experts_per_token, chunk),
    )
    return min(ways, key=lambda parts: _seconds(parts, chunk_F))


def _step(design: InstanceDesign, on_gpu: Mapping[str, Part], *, brought: bool) -> list[Part]:
    """A step whose prompts the processors compute, too, or for which experts are brought."""
    shape, share = design.shape, design.host_share
    computed = ROWS if brought else TOKENS
    (routed,) = (part for part in parts_of(shape, design.formats) if part.name == ROUTED)
    one = work_of(shape, routed, Step(new_tokens=1))
    bytes_per_s, flops_per_s = rates_on(design.machine.host, "cpu", routed)
    read_F = share * one.read_bytes / shape.experts_per_token / bytes_per_s * EXPERTS
    token_s = share * one.flops / flops_per_s
    crossing_s = 2 * len(shape.sparse_layers) * hand_over_seconds(shape, design.gpu, 1)
    device: list[Part] = [
        *(part for name, part in on_gpu.items() if name not in (ROUTED, SHARED)),
        (crossing_s * computed,),
    ]
    mixture = [tuple((1 - share) * row_F for row_F in on_gpu[ROUTED])]
    if SHARED in on_gpu:
        mixture.append(on_gpu[SHARED])
    if brought:
        gpus, gpu, memory = design.parallelism.tensor, design.gpu, design.machine.host
        link_s = share * routed.stored_bytes / min(gpus * gpu.link_gbs, memory.bandwidth_gbs) / 1e9
        brought_s = share * one.flops / gpus / rates_on(gpu, "gpu", routed)[1]
        mixture.append((link_s * form(prefill_step=1), brought_s * PROMPT))
    host: Part = (read_F, token_s * computed)
    if not design.deferred_experts:
        return [*device, longest([summed(mixture), host])]
    chosen = share * shape.experts_per_token
    now = 1 - min(design.deferred_experts, chosen) / chosen
    late_F = (1 - now) * ROWS
    immediate: Part = (now * read_F, token_s * (computed - late_F))
    return [longest([summed([*device, longest([summed(mixture), immediate])]), host])]


def _seconds(parts: Sequence[Part], step_F: FormRow) -> float:
    return sum(max(float(row_F @ step_F) for row_F in part) for part in parts)
