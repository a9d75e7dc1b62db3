"""How a long work goes that is counted in bytes, as a line of text every few seconds."""

import time
from collections.abc import Callable

from inlay.core.units import format_bytes

_FIRST_S = 1.0  # what is there already is counted sooner than this
_EVERY_S = 5.0


class RateLine:
    """Give it as `progress` to what fetches or converts; says nothing when there is nothing to do.

    Args:
        doing: e.g. `fetching org/name`.
        say: takes each line.
        now: monotonic seconds.
    """

    def __init__(
        self,
        doing: str,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doing, self._say, self._now = doing, say, now
        self._start: tuple[float, int] | None = None
        self._next_s = 0.0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Take the bytes that are done, and the bytes in all."""
        now = self._now()
        if self._start is None:
            self._start, self._next_s = (now, done_bytes), now + _FIRST_S
        if now < self._next_s or done_bytes >= total_bytes:
            return
        self._next_s = now + _EVERY_S
        began, had = self._start
        rate = (done_bytes - had) / (now - began)
        left = f", {(total_bytes - done_bytes) / rate:.0f} s left" if rate else ""
        self._say(
            f"{self._doing}: {format_bytes(done_bytes)} of {format_bytes(total_bytes)}, "
            f"{_format_rate(rate)}{left}"
        )


def _format_rate(bytes_per_s: float) -> str:
    return (
        f"{bytes_per_s / 1e9:.2f} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:.1f} MB/s"
    )
