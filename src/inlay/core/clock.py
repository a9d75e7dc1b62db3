"""Time as an argument, so that policies, the simulator and tests need no real clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary but fixed start; never decreases."""
        ...


class SystemClock:
    """The machine's monotonic clock; comparable between processes of one machine."""

    def now(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        """The time set so far, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (must not be negative)."""
        if seconds < 0:
            raise ValueError(f"advance: seconds must be >= 0, got {seconds}")
        self._now_s += seconds
