"""Leaves a store alone for a while after it failed, and counts what happens with it."""

import logging
from dataclasses import dataclass
from math import inf

from inlay.core.clock import Clock
from inlay.core.errors import InlayError

log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 1.0, 30.0


@dataclass(slots=True)
class TierCounts:
    """Totals since the start.

    Attributes:
        loaded_bytes, written_bytes: of pages that were moved.
        cut_tokens: tokens that were computed although a tier had them, because that was quicker.
        failures: calls of the store that failed, and blocks that were not as they must be.
        lost_blocks: blocks that had to give up their pages before they were copied.
    """

    loaded_bytes: int = 0
    written_bytes: int = 0
    cut_tokens: int = 0
    failures: int = 0
    lost_blocks: int = 0


class Pause:
    """A pause after each failure, longer from failure to failure, until something works.

    Args:
        what: what pauses, for the log.
        counts: where failures are counted.
    """

    def __init__(self, what: str, counts: TierCounts, clock: Clock) -> None:
        self._what = what
        self._counts = counts
        self._clock = clock
        self._next_s = _FIRST_S
        self._until_s = -inf

    @property
    def on(self) -> bool:
        """Whether the store is to be left alone now."""
        return self._clock.now() < self._until_s

    def note(self, error: Exception | None) -> None:
        """A call ended well, or with this error."""
        if error is None:
            self._next_s = _FIRST_S
            return
        self._counts.failures += 1
        if self.on:
            return
        what = error if isinstance(error, InlayError) else repr(error)
        log.warning("%s a tier fails, and pauses for %g s: %s", self._what, self._next_s, what)
        self._until_s = self._clock.now() + self._next_s
        self._next_s = min(2 * self._next_s, _LONGEST_S)
