"""What a GPU and the processors do for the same layers: deferral, and streaming of experts."""

from collections.abc import Sequence
from dataclasses import dataclass

from inlay.core.deferral import choose_deferred, gain, most_deferred, step_time
from inlay.core.hardware import Machine
from inlay.core.layer_times import decode_layers
from inlay.core.model_shape import ModelShape
from inlay.core.offload import Offload
from inlay.core.roofline import Part, Step, stream_threshold_tokens


@dataclass(frozen=True, kw_only=True)
class Together:
    """Where routed experts of the GPU's layers are the processors'.

    Attributes:
        deferred: of a token's experts, what `auto` chooses for one request with a full context.
        deferral_times: speed of its decoding beside none deferred.
        host_busy, gpu_busy: shares of that step in which they compute.
        stream_tokens: of a step from which on experts are brought to the GPU; None: never.
    """

    deferred: int
    deferral_times: float
    host_busy: float
    gpu_busy: float
    stream_tokens: int | None


def work_together(
    shape: ModelShape,
    parts: Sequence[Part],
    machine: Machine,
    placement: Offload,
    context_tokens: int,
) -> Together | None:
    """None where either has a layer's whole work."""
    share = placement.gpu_share
    step = Step(new_tokens=1, cached_tokens=context_tokens - 1)
    layers, after_s = decode_layers(shape, parts, machine, share, step)
    if not layers:
        return None
    most = most_deferred(shape.experts_per_token)
    deferred = choose_deferred(layers, most, after_s=after_s)
    done = step_time(layers, deferred, after_s=after_s)
    return Together(
        deferred=deferred,
        deferral_times=gain(layers, deferred, after_s=after_s),
        host_busy=done.host_busy,
        gpu_busy=done.device_busy,
        stream_tokens=stream_threshold_tokens(shape, parts, machine, share),
    )
