"""Times on a GPU: calls in a CUDA graph, replayed in turn, so that no launch is measured.

On a CPU, where Triton's interpreter runs kernels, calls are made one by one: that tells that they
run, not how fast.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

Call = Callable[[], object]

WARM_REPLAYS = 2


class Timed:
    """Some calls, each with data of its own, so that a cache has nothing from the one before.

    Args:
        calls: what one replay makes, in order.
    """

    def __init__(self, calls: Sequence[Call], device: torch.device) -> None:
        self._calls, self._cuda = list(calls), device.type == "cuda"
        self._replay = self._make_all
        if not self._cuda:
            return
        self._make_all()  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._make_all()
        self._replay = graph.replay
        for _ in range(WARM_REPLAYS):
            self._replay()

    def microseconds(self) -> float:
        """Of one call, on average over a replay."""
        if not self._cuda:
            begin_s = time.perf_counter()
            self._replay()
            return 1e6 * (time.perf_counter() - begin_s) / len(self._calls)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._replay()
        end.record()
        end.synchronize()
        return 1e3 * float(begin.elapsed_time(end)) / len(self._calls)

    def _make_all(self) -> None:
        for call in self._calls:
            call()


def take_turns(sides: Mapping[str, Timed], repeats: int) -> dict[str, list[float]]:
    """Microseconds of a call of each side, in rounds."""
    found: dict[str, list[float]] = {label: [] for label in sides}
    for _ in range(repeats):
        for label, side in sides.items():
            found[label].append(side.microseconds())
    return found


def rate(call: Call, amount: float, device: torch.device) -> float:
    """What a call does per second: the median of some rounds, each of several calls."""
    rounds, calls = (7, 8) if device.type == "cuda" else (3, 1)
    seconds = []
    call()
    for _ in range(rounds):
        _wait(device)
        begin_s = time.perf_counter()
        for _ in range(calls):
            call()
        _wait(device)
        seconds.append((time.perf_counter() - begin_s) / calls)
    return amount / statistics.median(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
