"""Experts that come to a device: within a budget, and never half there."""

import threading

import numpy as np
import pytest

from inlay.core.clock import FakeClock
from inlay.core.errors import ArgumentError
from inlay.experts import Residency
from inlay.models.expert_mover import ExpertMover

EXPERT_BYTES = 1000
LONG_S = 10.0


class Slots:
    """Residents that note what is done to them; copies wait until they may go on."""

    def __init__(self, residency: Residency, layer: int) -> None:
        self.residency, self.layer = residency, layer
        self.go_on = threading.Event()
        self.go_on.set()
        self.filled: list[tuple[int, int]] = []
        self.shown: list[list[int]] = []
        self.fails = False

    def fill(self, slot: int, expert: int) -> None:
        assert self.go_on.wait(LONG_S)
        # While it is copied nobody may look for either expert in the slot.
        assert slot not in self.residency.slot_of_LE[self.layer]
        if self.fails:
            raise OSError("the link is down")
        self.filled.append((slot, expert))

    def show(self, slot_of_E: np.ndarray) -> None:
        self.shown.append(slot_of_E.tolist())


@pytest.fixture
def moving():
    """Two layers of eight experts, two slots each, experts 0 and 1 in them."""
    residency, clock = Residency([2, 2], 8), FakeClock()
    slots = [Slots(residency, layer) for layer in range(2)]
    for layer in range(2):
        for slot in range(2):
            residency.put(layer, slot, slot)
    mover = ExpertMover(residency, slots, EXPERT_BYTES, 10 * EXPERT_BYTES, clock)
    yield mover, residency, slots, clock
    for one in slots:
        one.go_on.set()
    mover.close()


def counts(**of_layers: list[int]) -> np.ndarray:
    """Forty activations of each of these experts."""
    counted = np.zeros((2, 8), np.uint32)
    for layer, experts in of_layers.items():
        counted[int(layer[1:]), experts] = 40
    return counted


def settle(mover: ExpertMover) -> None:
    for copy in list(mover._copies):
        copy.done.exception(LONG_S)


def test_a_hot_expert_takes_the_place_of_a_cold_one(moving) -> None:
    mover, residency, slots, clock = moving
    clock.advance(1.0)
    mover.between_steps(counts(l0=[5, 1]))
    assert residency.slot_of_LE[0, 0] == -1  # the host's from now on
    settle(mover)
    mover.between_steps(counts())
    assert residency.slot_of_LE[0].tolist() == [-1, 1, -1, -1, -1, 0, -1, -1]
    assert slots[0].filled == [(0, 5)] and slots[0].shown[-1] == residency.slot_of_LE[0].tolist()
    assert mover.moved == 1 and not slots[1].filled


def test_copies_keep_to_the_budget(moving) -> None:
    mover, _, slots, clock = moving
    hot = counts(l0=[5, 6], l1=[6, 7])
    mover.between_steps(hot)
    assert not mover._copies  # nothing is saved yet
    clock.advance(0.15)  # one and a half experts
    mover.between_steps(hot)
    assert len(mover._copies) == 1
    clock.advance(100)  # what is saved has an end: ten, and there are only so many slots
    for _ in range(5):
        settle(mover)
        mover.between_steps(hot)
    assert mover.moved == 4
    assert {expert for one in slots for _, expert in one.filled} == {5, 6, 7}


def test_steps_go_on_beside_a_copy(moving) -> None:
    mover, residency, slots, clock = moving
    slots[0].go_on.clear()
    clock.advance(1.0)
    for _ in range(3):
        mover.between_steps(counts(l0=[5, 1]))
    assert residency.resident_LE[0].sum() == 1 and mover.moved == 0
    slots[0].go_on.set()
    settle(mover)
    mover.between_steps(counts())
    assert mover.moved == 1


def test_a_copy_that_fails_leaves_both_to_the_host(moving, caplog) -> None:
    mover, residency, slots, clock = moving
    slots[0].fails = True
    clock.advance(1.0)
    mover.between_steps(counts(l0=[5, 1]))
    settle(mover)
    mover.between_steps(counts())
    assert "the link is down" in caplog.text and mover.moved == 0
    assert residency.slot_of_LE[0, 0] == residency.slot_of_LE[0, 5] == -1


def test_a_layer_that_is_dropped_waits_for_its_copy(moving) -> None:
    mover, residency, slots, clock = moving
    slots[0].go_on.clear()
    clock.advance(1.0)
    mover.between_steps(counts(l0=[5, 1]))
    threading.Timer(0.05, slots[0].go_on.set).start()
    mover.drop(0)
    assert not mover._copies
    residency.drop(0)
    mover.between_steps(counts(l0=[5], l1=[6]))
    assert residency.slots(0) == 0 and not residency.resident_LE[0].any()


def test_slots_are_taken_once() -> None:
    residency = Residency([2], 8)
    residency.put(0, 1, 3)
    for slot, expert in ((1, 4), (0, 3)):
        with pytest.raises(ArgumentError, match="one is taken"):
            residency.put(0, slot, expert)
    with pytest.raises(ArgumentError, match="is in no slot"):
        residency.evict(0, 4)
    assert residency.evict(0, 3) == 1 and not residency.resident_LE.any()
