"""How much of decode steps a GPU does nothing, and how much of that is waiting for launches.

    idle = measure(lambda: driver.step(work), steps=20, host_s=lambda: share.host_s)
    idle.most_of_launches  # share of the steps' time

For cases that run on a GPU. PyTorch's profiler says when kernels and copies ran; waits of a stream
for a word are none of these, so a GPU that waits for host experts is idle here, too. How long it
waits for them nobody says: at most as long as the host computes. Hence two bounds, which are one
where a model has no host experts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Of some steps together.

    Attributes:
        span_s: from the begin of the first kernel or copy to the end of the last one.
        busy_s: of it at least one ran.
        host_s: that host experts were computed for an answer.
    """

    span_s: float
    busy_s: float
    host_s: float = 0.0

    @property
    def most_of_launches(self) -> float:
        """Share of the span in which the GPU waited for launches, were it never for the host."""
        return (self.span_s - self.busy_s) / self.span_s

    @property
    def least_of_launches(self) -> float:
        """The same, were it for the host as long as that computed."""
        return max(0.0, self.span_s - self.busy_s - self.host_s) / self.span_s


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Time in at least one of some intervals of begin and end."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def measure(
    step: Callable[[], object], *, steps: int, host_s: Callable[[], float] = lambda: 0.0
) -> Idle:
    """Run steps, warmed up before, under the profiler, which itself slows launches down.

    Args:
        host_s: seconds of host experts so far, `HostShare.host_s`.

    Raises:
        RuntimeError: the profiler saw nothing of a GPU.
    """
    before_s = host_s()
    # What is not kept on purpose is warned of by some versions of PyTorch.
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    ran = [
        (event.time_range.start * 1e-6, event.time_range.end * 1e-6)
        for event in seen.events()
        if event.device_type == DeviceType.CUDA
    ]
    if not ran:
        raise RuntimeError("the profiler saw no kernel of a GPU")
    span_s = max(end for _, end in ran) - min(begin for begin, _ in ran)
    return Idle(span_s=span_s, busy_s=covered(ran), host_s=host_s() - before_s)
