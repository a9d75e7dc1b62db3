"""What happens at given times, besides requests that arrive."""

import heapq
from collections.abc import Callable

Act = Callable[[float], None]
"""Is given its time."""


class Agenda:
    """Acts by their times; those of one time in the order in which they were added."""

    def __init__(self) -> None:
        self._acts: list[tuple[float, int, Act]] = []
        self._num_added = 0

    def at(self, time_s: float, act: Act) -> None:
        """Something happens then."""
        heapq.heappush(self._acts, (time_s, self._num_added, act))
        self._num_added += 1

    def take(self, until_s: float) -> tuple[float, Act] | None:
        """The next one, if it is not after `until_s`."""
        if not self._acts or self._acts[0][0] > until_s:
            return None
        time_s, _, act = heapq.heappop(self._acts)
        return time_s, act
