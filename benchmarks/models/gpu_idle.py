"""How long a GPU does nothing while steps run."""

import time
from collections.abc import Callable, Iterable

import torch
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile


def idle_share(step: Callable[[], object], steps: int) -> float:
    """Share of the time of some steps in which the GPU neither computes nor copies.

    Steps are timed alone, and then traced to learn how long the GPU is busy in them: tracing takes
    time of its own, of the processor.
    """
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    took_s = time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events: EventList = traced.events()
    spans = [
        (one.time_range.start, one.time_range.end)
        for one in events
        if one.device_type == torch.autograd.DeviceType.CUDA
    ]
    return max(0.0, 1 - covered(spans) / 1e6 / took_s)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans, which may overlap: copies run beside kernels."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
