"""Leaves something alone for a while after it failed: a store, above all."""

import logging
from collections.abc import Callable
from math import inf

from inlay.core.clock import Clock
from inlay.core.errors import InlayError

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 1.0, 30.0


class Pause:
    """A pause after each failure, 1 s first, twice as long each time, until something works; 30 s
    at most.

    Any thread may call it.

    Args:
        what: what fails and pauses, for the log: "writing to a tier".
        failed: called for each failure.
    """

    def __init__(self, what: str, clock: Clock, failed: Callable[[], None] = lambda: None) -> None:
        self._what = what
        self._clock = clock
        self._failed = failed
        self._next_s = _FIRST_S
        self._until_s = -inf

    @property
    def on(self) -> bool:
        """Whether it is to be left alone now."""
        return self._clock.now() < self._until_s

    def note(self, error: Exception | None) -> None:
        """A call ended well, or with this error."""
        if error is None:
            if self._next_s != _FIRST_S:
                log.warning("%s works again", self._what)
            self._next_s = _FIRST_S
            return
        self._failed()
        if self.on:
            return
        what = error if isinstance(error, InlayError) else repr(error)
        log.warning("%s fails, and pauses for %g s: %s", self._what, self._next_s, what)
        self._until_s = self._clock.now() + self._next_s
        self._next_s = min(2 * self._next_s, _LONGEST_S)
