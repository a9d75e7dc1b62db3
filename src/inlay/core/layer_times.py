"""What each mixture layer of a decode step takes, by the roofline: what deferral is chosen from.

    layers, after_s = decode_layers(shape, parts, machine, gpu_share, Step(new_tokens=1))
    deferred = choose_deferred(layers, most_deferred(shape.experts_per_token), after_s=after_s)

Layers of a kind are alike here: each has an even part of what all of them take. Pure.
"""

from collections.abc import Mapping, Sequence

from inlay.core.deferral import LayerTime
from inlay.core.hardware import Device, Machine
from inlay.core.model_shape import ModelShape
from inlay.core.roofline import (
    Part,
    Step,
    Work,
    bytes_per_weight,
    expected_experts,
    hand_over_seconds,
    predict,
    seconds_on,
)

_LAYER = ("norms", "attention projections", "latent projections", "attention core")
"""Parts that every layer has."""


def decode_layers(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    gpu_share: Mapping[str, float],
    step: Step,
) -> tuple[list[LayerTime], float]:
    """All mixture layers in their order, and what the GPU takes behind the last one.

    Without deferral `inlay.core.deferral.step_time` of these is what `predict` says.

    Args:
        gpu_share: as for `predict`.

    Returns:
        No layers where the GPU and the processors do not share them: without host experts, with
        anything else on the processors but the embedding, or where experts are brought.
    """
    took = {
        (time.name, time.device): time.seconds
        for time in predict(shape, parts, machine, gpu_share, step).times
    }
    on_cpu = {name for name, device in took if device == "cpu"}
    gpu = machine.gpu
    if gpu is None or "routed experts" not in on_cpu or on_cpu - {"routed experts", "embedding"}:
        return [], 0.0
    of_gpu = {name: seconds for (name, device), seconds in took.items() if device == "gpu"}
    sparse = len(shape.sparse_layers)
    each = sum(of_gpu.get(name, 0.0) for name in _LAYER) / shape.layers
    dense = of_gpu.get("dense MLPs", 0.0) / max(1, shape.layers - sparse)
    router = of_gpu.get("routers", 0.0) / sparse
    beside = sum(of_gpu.get(name, 0.0) for name in ("shared experts", "routed experts")) / sparse
    crossing = hand_over_seconds(shape, gpu, step.tokens)
    host_share = 1 - gpu_share.get("routed experts", 0.0)
    host_experts = host_share * shape.experts_per_token
    (routed,) = (part for part in parts if part.name == "routed experts")

    def host_s(count: float) -> float:
        return _host_seconds(shape, routed, machine.host, host_share * shape.experts, count, step)

    found = []
    waiting = sum(seconds for (name, _), seconds in took.items() if name == "embedding")
    for layer in range(shape.layers):
        waiting += each
        if layer not in shape.sparse_layers:
            waiting += dense
            continue
        found.append(
            LayerTime(
                before_s=waiting + router,
                beside_s=beside,
                ask_s=crossing,
                answer_s=crossing,
                host_experts=host_experts,
                host_s=host_s,
            )
        )
        waiting = 0.0
    return found, waiting + of_gpu.get("output matrix", 0.0)


def _host_seconds(
    shape: ModelShape, routed: Part, host: Device, experts: float, count: float, step: Step
) -> float:
    """Of one layer, of whose host `experts` every token chooses `count`."""
    read = expected_experts(experts, count, step.tokens) * shape.expert_parameters
    work = Work(
        flops=2 * step.tokens * count * shape.expert_parameters,
        read_bytes=read * bytes_per_weight(routed.format),
    )
    return seconds_on(host, "cpu", routed, work)[0]
