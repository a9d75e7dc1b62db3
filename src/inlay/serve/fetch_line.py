"""How a model's download goes, as a line of text every few seconds."""

import time
from collections.abc import Callable

from inlay.core.units import format_bytes

_FIRST_S = 1.0  # what is in the cache already is counted sooner than this
_EVERY_S = 5.0


class FetchLine:
    """Give it to `resolve_model` as `progress`; says nothing when nothing has to be fetched.

    Args:
        name: the model, as the user called it.
        say: takes each line.
        now: monotonic seconds.
    """

    def __init__(
        self,
        name: str | None,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._say, self._now = name, say, now
        self._start: tuple[float, int] | None = None
        self._next_s = 0.0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Take the bytes that are there, and the bytes in all."""
        now = self._now()
        if self._start is None:
            self._start, self._next_s = (now, done_bytes), now + _FIRST_S
        if now < self._next_s or done_bytes >= total_bytes:
            return
        self._next_s = now + _EVERY_S
        began, had = self._start
        speed = format_bytes((done_bytes - had) / (now - began))
        self._say(
            f"fetching {self._name}: {format_bytes(done_bytes)} of {format_bytes(total_bytes)}, "
            f"{speed}/s"
        )
