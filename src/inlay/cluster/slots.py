"""Who can be chosen, as arrays over slots. Pure: no clock, no I/O.

Slots are those of the prefix index.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.live import LiveRequest
from inlay.cluster.timing import Coefficients, TimingModel, TransferModel
from inlay.core.errors import ArgumentError
from inlay.core.instance_messages import Role

Floats = NDArray[np.float64]


@dataclass(kw_only=True, eq=False)
class Slot:
    """What a slot has besides numbers in arrays.

    Attributes:
        timing: of instances of its kind.
        transfer: of what it sends.
        chunk: most prompt tokens of one request in a step.
        position: mean position of the tokens that were sent there to compute.
        part: mean number of tokens of a step's part of a prompt; infinite before the first one.
        here: requests, in the order in which they were sent.
        coming: of them, those whose prompt is not known to be computed.
        seconds: of the columns in `SlotTimes`, the coefficients that they were made of.
    """

    role: Role
    timing: TimingModel
    transfer: TransferModel
    chunk: int
    draining: bool = False
    position: float = 0.0
    part: float = math.inf
    here: dict[str, LiveRequest] = field(default_factory=dict)
    coming: dict[str, LiveRequest] = field(default_factory=dict)
    seconds: Coefficients | None = None


class Slots:
    """Roles of instances and who of them takes what. All arrays are (S,) unless it says otherwise.

    Arrays of a subclass grow with these, and are 0 where somebody joins.

    Attributes:
        closed_prefill_s, closed_decode_s: 0 where a phase may be put, infinite elsewhere: added to
            a cost, it leaves only candidates. Where no instance has a role, all others take its
            part.
        closed_short_s: as `closed_prefill_s` for prompts with at most `chunk` tokens to compute;
            instances that decode take them, too.
        chunk: most prompt tokens of one request in a step.
        splits: whether a slot only computes prompts, so that its requests decode elsewhere.
        num_open, num_prefill, num_splits: how many there are to choose from, how many of them
            take prompts of any length, and how many only prompts.
    """

    def __init__(self) -> None:
        self.num_slots = 0
        self.closed_prefill_s, self.closed_decode_s = empty(), empty()
        self.closed_short_s, self.chunk = empty(), empty()
        self.splits: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self.num_open = self.num_prefill = self.num_splits = 0
        self._excluded: frozenset[int] = frozenset()
        self._slots: list[Slot | None] = []

    def _take(self, slot: int, one: Slot) -> None:
        """Somebody takes a slot."""
        if slot < 0 or (slot < self.num_slots and self._slots[slot] is not None):
            raise ArgumentError(f"cluster state: slot {slot} is in use, or negative")
        if slot >= self.num_slots:
            self._grow(slot + 1)
        self._slots[slot] = one
        for array in vars(self).values():
            if isinstance(array, np.ndarray):
                array[..., slot] = 0
        self.chunk[slot] = one.chunk
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

    def transfer(self, slot: int) -> TransferModel:
        """Of what a slot sends."""
        return self._slot(slot).transfer

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
        for name, array in list(vars(self).items()):
            if isinstance(array, np.ndarray):
                wider = np.zeros((*array.shape[:-1], num_slots), array.dtype)
                wider[..., : self.num_slots] = array
                setattr(self, name, wider)
        self._slots += [None] * (num_slots - self.num_slots)
        self.num_slots = num_slots

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
        self.closed_short_s = np.where(both, 0.0, np.inf)
        self.closed_prefill_s = np.where(prefill, 0.0, np.inf)
        self.closed_decode_s = np.where(decode, 0.0, np.inf)
        self.splits = both & ~decode
        self.num_prefill, self.num_splits = int(prefill.sum()), int(self.splits.sum())
        self.num_open = int(both.sum())


def empty() -> Floats:
    """An array over no slots yet."""
    return np.zeros(0)
