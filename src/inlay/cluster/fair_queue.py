"""Requests that wait for an instance, in the order of priority and of fair shares.

Weighted start-time fair order: a tenant's requests are laid end to end on a virtual time line, each
as long as its work divided by the tenant's weight, and the one that starts first comes first. A
tenant that was idle starts now and not in the past. Bounded: the last of the least urgent goes.

Source: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).
"""

import heapq
import itertools
from collections.abc import Mapping
from typing import Generic, TypeVar

from inlay.core.errors import ArgumentError, ConfigError

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """A bounded queue. Pure: no clock.

    Args:
        max_items: how many may wait.
        weights: of tenants; 1 where there is none.
    """

    def __init__(self, max_items: int, weights: Mapping[str, float] | None = None) -> None:
        if max_items < 1:
            raise ConfigError(f"fair queue: max_items must be at least 1, got {max_items}")
        self._max = max_items
        self._weights = dict(weights or {})
        self._heap: list[tuple[int, float, int, Item]] = []
        self._ends: dict[str, float] = {}  # of each tenant's last request, in virtual time
        self._virtual = 0.0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: Item, *, tenant: str, work_s: float, priority: int = 0) -> Item | None:
        """Let a request wait.

        Args:
            work_s: predicted seconds of computing.

        Returns:
            The one that must go because the queue is full: perhaps this one. None if none must.
        """
        if not work_s >= 0:
            raise ArgumentError(f"fair queue: work_s must be at least 0, got {work_s}")
        start = max(self._virtual, self._ends.get(tenant, 0.0))
        self._ends[tenant] = start + work_s / self._weights.get(tenant, 1.0)
        heapq.heappush(self._heap, (priority, start, next(self._numbers), item))
        if len(self._heap) <= self._max:
            return None
        last = max(self._heap)
        self._heap.remove(last)
        heapq.heapify(self._heap)
        return last[-1]

    def pop(self) -> Item:
        """The next one.

        Raises:
            IndexError: nobody waits.
        """
        _, start, _, item = heapq.heappop(self._heap)
        self._virtual = max(self._virtual, start)
        if not self._heap:
            self._ends.clear()
            self._virtual = 0.0
        return item

    def remove(self, item: Item) -> bool:
        """Take one out that does not want to wait any more; whether it was there."""
        for entry in self._heap:
            if entry[-1] is item:
                self._heap.remove(entry)
                heapq.heapify(self._heap)
                return True
        return False
