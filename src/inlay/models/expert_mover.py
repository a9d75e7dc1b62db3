"""Brings experts that are used often to their device, beside the steps.

Between two steps an expert leaves its slot and is the host's; a thread copies another one there;
between two later steps that one is shown to the device. So no step waits for a copy, and none
meets half an expert.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.core.clock import Clock
from inlay.experts import Hotness, Residency
from inlay.models.hand_over import Residents

log = logging.getLogger(__name__)

_MOST_SAVED_S = 1.0  # of the budget that was not used


@dataclass(frozen=True)
class _Copy:
    """One that is under way."""

    place: int
    slot: int
    expert: int
    done: "Future[None]"


class ExpertMover:
    """Moves within a budget.

    Args:
        residents_L: of each layer; None: it keeps none.
        expert_bytes: of one expert.
        bytes_per_s: most that is copied.

    Attributes:
        moved: experts that came to their device.
    """

    def __init__(
        self,
        residency: Residency,
        residents_L: Sequence[Residents | None],
        expert_bytes: int,
        bytes_per_s: float,
        clock: Clock,
    ) -> None:
        self.moved = 0
        self._residency, self._residents_L = residency, list(residents_L)
        self._expert_bytes, self._bytes_per_s, self._clock = expert_bytes, bytes_per_s, clock
        layers, experts = residency.slot_of_LE.shape
        self._hotness = Hotness(layers, experts)
        self._credit_bytes, self._credited_at = 0.0, clock.now()
        self._thread = ThreadPoolExecutor(1, "expert-mover")
        self._copies: list[_Copy] = []

    def between_steps(self, counts_LE: NDArray[np.integer]) -> None:
        """Take in what a step chose, show what has come, begin what is worth it.

        Cost: about 0.2 ms for 58 layers of 256 experts; copies are made beside it.
        """
        self._hotness.observe(counts_LE)
        self._finish()
        self._begin()

    def drop(self, place: int) -> None:
        """A layer keeps no experts any more; returns when nothing is copied there."""
        for copy in [copy for copy in self._copies if copy.place == place]:
            if not copy.done.cancel():
                wait([copy.done])
            self._copies.remove(copy)
        self._residents_L[place] = None

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _finish(self) -> None:
        for copy in [copy for copy in self._copies if copy.done.done()]:
            self._copies.remove(copy)
            residents = self._residents_L[copy.place]
            error = copy.done.exception()
            if error is not None or residents is None:
                log.warning("an expert did not come to its device: %r", error)
                continue
            self._residency.put(copy.place, copy.slot, copy.expert)
            residents.show(self._residency.slot_of_LE[copy.place])
            self.moved += 1

    def _begin(self) -> None:
        now = self._clock.now()
        most = self._bytes_per_s * _MOST_SAVED_S
        earned = (now - self._credited_at) * self._bytes_per_s
        # One expert may be larger than what is saved.
        self._credit_bytes = min(max(most, self._expert_bytes), self._credit_bytes + earned)
        self._credited_at = now
        if self._credit_bytes < self._expert_bytes:
            return
        resident_LE = self._residency.resident_LE
        for copy in self._copies:
            resident_LE[copy.place, copy.expert] = True
        moves = self._hotness.choose(resident_LE, int(self._credit_bytes), self._expert_bytes)
        coming = {(copy.place, copy.expert) for copy in self._copies}
        for move in moves:
            residents = self._residents_L[move.layer]
            if residents is None or (move.layer, move.demoted) in coming:
                continue
            slot = self._residency.evict(move.layer, move.demoted)
            residents.show(self._residency.slot_of_LE[move.layer])
            done = self._thread.submit(residents.fill, slot, move.promoted)
            self._copies.append(_Copy(move.layer, slot, move.promoted, done))
            self._credit_bytes -= self._expert_bytes
