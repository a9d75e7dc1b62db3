"""When the processor and a device work in a decode step, and how many experts to defer for it.

A device that reaches a mixture layer hands its rows to the host, computes shared and resident
experts meanwhile, and waits for the answer: the host experts' sum. The host rests until the next
layer asks. With deferral it first answers for some experts of a token alone, and computes the
others while the device is on its way to the next mixture layer, whose answer brings their sum.
The last mixture layer that asks defers nothing.

Knows no model and no machine: `inlay.core.roofline` or a measurement gives the times. Pure, for
serving, planning and simulating.

Source: KTransformers (SOSP 2025), expert deferral.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

IMMEDIATE = 2
"""Experts of a token that are never deferred, resident ones among them. The source keeps as many:
answers were then as good as without deferral."""

NEAR_BEST = 1.02
"""A step that takes up to so many times the shortest is as good: fewer deferred experts then."""


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """What one mixture layer takes in a decode step.

    Attributes:
        before_s: of the device, from the mixture layer before up to where it asks: dense layers in
            between, attention, norms, the router.
        beside_s: of the device while the host computes: shared and resident experts.
        ask_s, answer_s: of the device, to write its rows to the host and to read the sum.
        host_experts: of those that a token chooses, on average; without any the layer does not ask.
        host_s: what the host takes for so many experts of each token; asked for numbers above 0.
    """

    before_s: float
    beside_s: float = 0.0
    ask_s: float = 0.0
    answer_s: float = 0.0
    host_experts: float
    host_s: Callable[[float], float]


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """What a decode step takes.

    Attributes:
        seconds: from its first layer to its last.
        device_s, host_s: how long each of the two computes in it.
    """

    seconds: float
    device_s: float
    host_s: float

    @property
    def device_busy(self) -> float:
        """Share of the step, 0 to 1."""
        return self.device_s / self.seconds if self.seconds else 0.0

    @property
    def host_busy(self) -> float:
        """Share of the step, 0 to 1."""
        return self.host_s / self.seconds if self.seconds else 0.0


def most_deferred(experts_per_token: int) -> int:
    """How many of a token's experts may be deferred."""
    return max(0, experts_per_token - IMMEDIATE)


def step_time(layers: Sequence[LayerTime], deferred: int, *, after_s: float = 0.0) -> StepTime:
    """Let a step run in which each token defers up to so many host experts in each layer.

    Args:
        layers: all mixture layers, in their order.
        after_s: of the device, behind the last of them.

    Cost: some operations per layer.
    """
    last = max((at for at, layer in enumerate(layers) if layer.host_experts > 0), default=-1)
    device = host = 0.0  # when each is free
    device_s = host_s = 0.0
    for at, layer in enumerate(layers):
        device += layer.before_s
        device_s += layer.before_s + layer.beside_s
        if layer.host_experts <= 0:
            device += layer.beside_s
            continue
        later = 0.0 if at == last else min(deferred, layer.host_experts)
        immediate_s = _host_seconds(layer, layer.host_experts - later)
        deferred_s = _host_seconds(layer, later)
        device += layer.ask_s
        answered = max(host, device) + immediate_s
        device = max(device + layer.beside_s, answered) + layer.answer_s
        host = answered + deferred_s
        device_s += layer.ask_s + layer.answer_s
        host_s += immediate_s + deferred_s
    return StepTime(seconds=device + after_s, device_s=device_s + after_s, host_s=host_s)


def _host_seconds(layer: LayerTime, experts: float) -> float:
    return layer.host_s(experts) if experts > 0 else 0.0


def choose_deferred(layers: Sequence[LayerTime], most: int, *, after_s: float = 0.0) -> int:
    """The fewest, up to `most`, with which a step is as short as deferral can make it.

    As long as the host has to rest while the device is between two mixture layers, one more
    shortens the step; once it does not, more change nothing.

    Args:
        most: what `most_deferred` says, or fewer where a user wants so.
    """
    seconds = [step_time(layers, deferred, after_s=after_s).seconds for deferred in range(most + 1)]
    enough = NEAR_BEST * min(seconds)
    return next(deferred for deferred, one in enumerate(seconds) if one <= enough)


def gain(layers: Sequence[LayerTime], deferred: int, *, after_s: float = 0.0) -> float:
    """How many times as many steps there are in the same time as without deferral."""
    without, shorter = (
        step_time(layers, number, after_s=after_s).seconds for number in (0, deferred)
    )
    return without / shorter if shorter else 1.0
