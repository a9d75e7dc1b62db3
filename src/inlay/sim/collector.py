"""Gathers what came of requests, part by part of their trace, until all of a part is known."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.sim.trace import Trace
from inlay.sim.world import OUTCOME


class _Part:
    """Requests `first` and after it, of which `open` are not over."""

    def __init__(self, first: int, trace: Trace, group: NDArray[np.uint8]) -> None:
        requests = len(trace)
        self.first = first
        self.open = requests
        self.refusals: dict[int, str] = {}
        self.columns: dict[str, NDArray[Any]] = {
            "arrival_s": trace.arrival_s,
            "input_tokens": trace.input_tokens,
            "output_tokens": trace.output_tokens,
            "group": group,
            "expected_ttft_s": np.full(requests, math.nan),
        }
        for name in _OUTCOMES:
            times = OUTCOME[name].kind == "f"
            self.columns[name] = (
                np.full(requests, math.nan) if times else np.full(requests, -1, np.int64)
            )


NOTHING = Trace(
    arrival_s=np.empty(0),
    input_tokens=np.empty(0, np.int32),
    output_tokens=np.empty(0, np.int32),
    block_starts=np.zeros(1, np.int64),
    blocks=np.empty(0, np.uint64),
)
"""A trace without a request."""
_OUTCOMES = tuple(name for name in OUTCOME.names or () if name not in ("request", "arrival_s"))


class Collector:
    """Columns of requests that have come and are not all over.

    Memory: about 100 bytes for each request of the parts that are not over, and of those behind
    them.
    """

    def __init__(self) -> None:
        self._parts: deque[_Part] = deque()
        self._requests = 0
        self._groups: dict[str, int] = {}  # names, in the order in which parts had them

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of all groups so far; a later part's begin with those of an earlier one."""
        return tuple(self._groups)

    def begin(self, trace: Trace) -> int:
        """One more part; returns the number of its first request."""
        for name in trace.groups:
            self._groups.setdefault(name, len(self._groups))
        numbers = np.array([self._groups[name] for name in trace.groups], np.uint8)
        first = self._requests
        self._requests += len(trace)
        self._parts.append(_Part(first, trace, numbers[trace.group]))
        return first

    def expected(self, request: int, ttft_s: float) -> None:
        """When the first token was expected by the decision of a request."""
        part = self._part(request)
        part.columns["expected_ttft_s"][request - part.first] = ttft_s

    def refused(self, request: int, reason: str) -> None:
        """A request will not be served."""
        part = self._part(request)
        part.refusals[request - part.first] = reason
        part.open -= 1

    def served(self, outcomes: NDArray[np.void]) -> None:
        """Requests that are over, as `World.outcomes` has them."""
        numbers = outcomes["request"].astype(np.int64)
        for part in self._parts:
            places = numbers - part.first
            mine = (places >= 0) & (places < len(part.columns["group"]))
            for name in _OUTCOMES:
                part.columns[name][places[mine]] = outcomes[name][mine]
            part.open -= int(mine.sum())

    def complete(self, *, ended: bool) -> Iterator[tuple[dict[str, Any], dict[int, str]]]:
        """Columns and refusals of parts whose requests are all over, in order; each once.

        Args:
            ended: whether nothing happens any more. Before, the latest part is kept: what instances
                still do belongs to it. Then there is one at least, if an empty one.
        """
        if ended and not self._parts:
            self._parts.append(_Part(0, NOTHING, np.empty(0, np.uint8)))
        while len(self._parts) > (not ended) and not self._parts[0].open:
            part = self._parts.popleft()
            yield part.columns, part.refusals

    def _part(self, request: int) -> _Part:
        return next(part for part in reversed(self._parts) if part.first <= request)
