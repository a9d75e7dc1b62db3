"""Sums and distributions of what happened of late, in slots of time that are given again. Pure.

Nothing is done while nothing happens: a slot that is too old is emptied when it is needed, or read
as empty.

Shapes: `N` slots, the oldest first; `B` bins.
"""

import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ArgumentError

SLOT_S = 2.0
NUM_SLOTS = 150
"""Five minutes of them."""

_LOW_S = 1e-5
_GROWTH = 1.05
_NUM_BINS = math.ceil(math.log(1e8) / math.log(_GROWTH))  # up to 1,000 s
_PER_LOG = 1.0 / math.log(_GROWTH)
_TRAILING_SLOTS = 5
"""A point of a series looks back over so many, so that few requests make a line, too."""

T = TypeVar("T")


class Ring(Generic[T]):
    """The last `NUM_SLOTS` slots of time, each with something of its own.

    Args:
        new: makes what a slot begins with.
    """

    def __init__(self, new: Callable[[], T]) -> None:
        self._new = new
        self._slots: list[T | None] = [None] * NUM_SLOTS
        self._numbers = [-1] * NUM_SLOTS

    def at(self, now_s: float) -> T:
        """What the present slot has."""
        number = int(now_s / SLOT_S)
        place = number % NUM_SLOTS
        slot = self._slots[place]
        if slot is None or self._numbers[place] != number:
            slot = self._slots[place] = self._new()
            self._numbers[place] = number
        return slot

    def latest(self, now_s: float, num_slots: int = NUM_SLOTS) -> list[T | None]:
        """The last slots, the present one at the end; None where nothing was."""
        last = int(now_s / SLOT_S)
        return [
            self._slots[number % NUM_SLOTS] if self._numbers[number % NUM_SLOTS] == number else None
            for number in range(last - num_slots + 1, last + 1)
        ]


class Tally:
    """Sums by key: since the beginning, and of late.

    Args:
        now_s: the beginning.

    Attributes:
        totals: since the beginning.
    """

    def __init__(self, now_s: float) -> None:
        self.totals: dict[str, float] = {}
        self._born_s = now_s
        self._ring: Ring[dict[str, float]] = Ring(dict)

    def add(self, key: str, now_s: float, amount: float = 1.0) -> None:
        """Something happened."""
        slot = self._ring.at(now_s)
        slot[key] = slot.get(key, 0.0) + amount
        self.totals[key] = self.totals.get(key, 0.0) + amount

    def sums(self, now_s: float, window_s: float) -> dict[str, float]:
        """By key, over the slots that `covered_s` has the length of."""
        found: dict[str, float] = {}
        for slot in self._ring.latest(now_s, num_slots(window_s)):
            for key, amount in (slot or {}).items():
                found[key] = found.get(key, 0.0) + amount
        return found

    def series(self, key: str, now_s: float) -> list[float]:
        """Of each slot, the present one at the end, which is not over."""
        return [(slot or {}).get(key, 0.0) for slot in self._ring.latest(now_s)]

    def covered_s(self, now_s: float, window_s: float) -> float:
        """How much time `sums` is of: about `window_s`, and less in the beginning."""
        whole_s = (num_slots(window_s) - 1) * SLOT_S + now_s % SLOT_S
        return max(min(whole_s, now_s - self._born_s), 1e-9)


class Spread:
    """The distribution of durations, in bins of which each is 5 % wider than the one before.

    Percentiles are right to 2.5 %, from 10 us to 1,000 s.
    """

    def __init__(self) -> None:
        self._ring: Ring[dict[int, int]] = Ring(dict)

    def add(self, seconds: float, now_s: float, count: int = 1) -> None:
        """Something took so long, `count` times. Cost: half a microsecond."""
        at = int(math.log(seconds / _LOW_S) * _PER_LOG) if seconds > _LOW_S else 0
        slot = self._ring.at(now_s)
        place = min(at, _NUM_BINS - 1)
        slot[place] = slot.get(place, 0) + count

    def count(self, now_s: float, window_s: float) -> int:
        """How many there were."""
        slots = self._ring.latest(now_s, num_slots(window_s))
        return sum(sum(slot.values()) for slot in slots if slot)

    def percentiles(
        self, shares: Sequence[float], now_s: float, window_s: float
    ) -> list[float | None]:
        """Seconds that so large a share of durations keep; None if there were none."""
        counts_NB = self._counts(now_s, num_slots(window_s)).sum(axis=0, keepdims=True)
        return [_percentile(counts_NB, share)[0] for share in shares]

    def series(self, share: float, now_s: float) -> list[float | None]:
        """A percentile at each slot, over that one and the four before it."""
        sums_NB = np.cumsum(self._counts(now_s, NUM_SLOTS), axis=0)
        sums_NB[_TRAILING_SLOTS:] -= sums_NB[:-_TRAILING_SLOTS].copy()
        return _percentile(sums_NB, share)

    def _counts(self, now_s: float, slots: int) -> NDArray[np.int64]:
        counts_NB = np.zeros((slots, _NUM_BINS), dtype=np.int64)
        for row_B, slot in zip(counts_NB, self._ring.latest(now_s, slots), strict=True):
            if slot:
                row_B[list(slot)] = list(slot.values())
        return counts_NB


def num_slots(window_s: float) -> int:
    """Slots that a window has, the present one included.

    Raises:
        ArgumentError: the window is longer than what is kept.
    """
    slots = round(window_s / SLOT_S)
    if not 1 <= slots <= NUM_SLOTS:
        raise ArgumentError(
            f"window_s must be in {SLOT_S:g}..{NUM_SLOTS * SLOT_S:g}, got {window_s}"
        )
    return slots


def _percentile(counts_NB: NDArray[np.int64], share: float) -> list[float | None]:
    """Of each row, by nearest rank: the middle of the bin that it falls into."""
    sums_NB = np.cumsum(counts_NB, axis=1)
    totals_N = sums_NB[:, -1]
    rank_N = np.maximum(np.ceil(share * totals_N), 1)
    bin_N = (sums_NB < rank_N[:, None]).sum(axis=1)
    seconds_N = _LOW_S * _GROWTH ** (bin_N + 0.5)
    return [
        float(value) if total else None for value, total in zip(seconds_N, totals_N, strict=True)
    ]
