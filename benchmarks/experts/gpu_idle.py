"""How much of decode steps a GPU does nothing, how much of that is waiting for launches, and how
many launches there are.

    idle = measure(lambda: driver.step(work), steps=20, host_s=lambda: share.host_s)
    idle.most_of_launches  # share of the steps' time

For cases that run on a GPU. PyTorch's profiler says when kernels and copies ran; waits of a stream
for a word are none of these, so a GPU that waits for host experts is idle here, too. How long it
waits for them nobody says: at most as long as the host computes. Hence two bounds, which are one
where a model has no host experts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


class NothingSeenError(RuntimeError):
    """The profiler saw no kernel of a GPU."""


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Of some steps together.

    Attributes:
        span_s: from the begin of the first kernel or copy to the end of the last one.
        busy_s: of it at least one ran.
        host_s: that host experts were computed for an answer.
        seconds_of: of all kernels and copies of a name together, and their number.
    """

    span_s: float
    busy_s: float
    host_s: float = 0.0
    seconds_of: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def most_of_launches(self) -> float:
        """Share of the span in which the GPU waited for launches, were it never for the host."""
        return (self.span_s - self.busy_s) / self.span_s

    @property
    def least_of_launches(self) -> float:
        """The same, were it for the host as long as that computed."""
        return max(0.0, self.span_s - self.busy_s - self.host_s) / self.span_s

    @property
    def launches(self) -> int:
        """Kernels and copies that ran."""
        return sum(count for _, count in self.seconds_of.values())


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Time in at least one of some intervals of begin and end."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def measure(
    step: Callable[[], object],
    *,
    steps: int,
    host_s: Callable[[], float] = lambda: 0.0,
    trace: str | None = None,
) -> Idle:
    """Run steps, warmed up before, under the profiler, which itself slows launches down.

    Args:
        host_s: seconds of host experts so far, `HostShare.host_s`.
        trace: a file for what the profiler saw, in the form that Chrome and Perfetto show; with
            what the processors did, which slows launches down more.

    Raises:
        NothingSeenError: no kernel ran, or the profiler saw none.
    """
    before_s = host_s()
    activities = [ProfilerActivity.CUDA, *([ProfilerActivity.CPU] if trace else [])]
    # What is not kept on purpose is warned of by some versions of PyTorch.
    with profile(activities=activities, acc_events=True) as seen:
        for _ in range(steps):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    if trace:
        seen.export_chrome_trace(trace)
    ran = [
        (event.name, event.time_range.start * 1e-6, event.time_range.end * 1e-6)
        for event in seen.events()
        if event.device_type == DeviceType.CUDA
    ]
    if not ran:
        raise NothingSeenError("the profiler saw no kernel of a GPU")
    seconds_of: dict[str, tuple[float, int]] = {}
    for name, begin, end in ran:
        seconds, count = seconds_of.get(name, (0.0, 0))
        seconds_of[name] = (seconds + end - begin, count + 1)
    return Idle(
        span_s=max(end for *_, end in ran) - min(begin for _, begin, _ in ran),
        busy_s=covered((begin, end) for _, begin, end in ran),
        host_s=host_s() - before_s,
        seconds_of=seconds_of,
    )
