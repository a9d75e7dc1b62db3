"""Who can be chosen, as arrays over slots. Pure: no clock, no I/O.

Slots are those of the prefix index.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.cluster import _backend
from inlay.cluster.slot_numbers import NUM_NUMBERS, SlotNumbers
from inlay.core.errors import ArgumentError
from inlay.core.instance_messages import Role


@dataclass(kw_only=True, eq=False)
class Slot:
    """What a slot has besides numbers in arrays."""

    role: Role
    draining: bool = False


class Slots(SlotNumbers):
    """Roles of instances and who of them takes what.

    Args:
        core: keeps the numbers up to date; it is told where they lie.

    Attributes:
        splits: (S,), whether a slot only computes prompts, so that its requests decode elsewhere.
        num_open, num_prefill, num_splits: how many there are to choose from, how many of them
            take prompts of any length, and how many only prompts.
    """

    def __init__(self, core: _backend.State) -> None:
        self.num_slots = 0
        self.splits: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.num_open = self.num_prefill = self.num_splits = 0
        self._core = core
        self._excluded: frozenset[int] = frozenset()
        self._slots: list[Slot | None] = []
        self._lie_in(np.zeros((NUM_NUMBERS, 0)))

    def _take(self, slot: int, one: Slot) -> None:
        """Somebody takes a slot, whose numbers are 0."""
        if slot < 0 or (slot < self.num_slots and self._slots[slot] is not None):
            raise ArgumentError(f"cluster state: slot {slot} is in use, or negative")
        if slot >= self.num_slots:
            self._grow(slot + 1)
        self._slots[slot] = one
        for array in self._arrays():
            array[..., slot] = 0
        self._open()

    def _free(self, slot: int) -> None:
        """Nobody is there any more."""
        self._slots[slot] = None
        self._open()

    def drain(self, slot: int) -> None:
        """Send nothing more there."""
        self._slot(slot).draining = True
        self._open()

    def set_role(self, slot: int, role: Role) -> None:
        """It has another role from now on; what it has stays."""
        self._slot(slot).role = role
        self._open()

    @contextmanager
    def without(self, slots: Sequence[int]) -> Iterator[None]:
        """Close these for one choice; the others take their part."""
        if not slots:
            yield
            return
        self._excluded = frozenset(slots)
        self._open()
        try:
            yield
        finally:
            self._excluded = frozenset()
            self._open()

    def role(self, slot: int) -> Role:
        """Of the instance in a slot."""
        return self._slot(slot).role

    @property
    def slots(self) -> list[int]:
        """Those in use."""
        return [slot for slot, one in enumerate(self._slots) if one is not None]

    def _slot(self, slot: int) -> Slot:
        one = self._slots[slot] if 0 <= slot < self.num_slots else None
        if one is None:
            raise ArgumentError(f"cluster state: nobody is in slot {slot}")
        return one

    def _grow(self, num_slots: int) -> None:
        numbers_CS = np.zeros((NUM_NUMBERS, num_slots))
        former = self._arrays()
        self._lie_in(numbers_CS)
        for array, had in zip(self._arrays(), former, strict=True):
            array[..., : self.num_slots] = had
        self._slots += [None] * (num_slots - self.num_slots)
        self.num_slots = num_slots
        self._core.bind(numbers_CS)

    def _open(self) -> None:
        """Who may be chosen changed."""
        roles = [
            "" if one is None or one.draining or slot in self._excluded else one.role
            for slot, one in enumerate(self._slots)
        ]
        both = np.array([role != "" for role in roles], dtype=bool)
        prefill = np.array([role in ("prefill", "both") for role in roles], dtype=bool)
        decode = np.array([role in ("decode", "both") for role in roles], dtype=bool)
        prefill = prefill if prefill.any() else both
        decode = decode if decode.any() else both
        self.closed_short_s[:] = np.where(both, 0.0, np.inf)
        self.closed_prefill_s[:] = np.where(prefill, 0.0, np.inf)
        self.closed_decode_s[:] = np.where(decode, 0.0, np.inf)
        self.splits = both & ~decode
        self.num_prefill, self.num_splits = int(prefill.sum()), int(self.splits.sum())
        self.num_open = int(both.sum())
