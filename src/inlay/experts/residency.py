"""Which expert is in which slot of a device's memory, for all mixture layers.

Pure state: it moves no bytes. Between leaving a slot and having filled another an expert is the
host's, so a step never meets half of one.

Shapes: L mixture layers, E experts of each, S slots.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ArgumentError

EMPTY = -1


class Residency:
    """Slots and who is in them.

    Args:
        slots_L: of each layer; 0: its experts are all the host's.
        experts: of each layer.

    Attributes:
        slot_of_LE: int32 `[L, E]`; `EMPTY`: the host computes it.
    """

    def __init__(self, slots_L: Sequence[int], experts: int) -> None:
        self.slot_of_LE: NDArray[np.int32] = np.full((len(slots_L), experts), EMPTY, np.int32)
        self._expert_of = [[EMPTY] * slots for slots in slots_L]

    def slots(self, layer: int) -> int:
        """Of a layer."""
        return len(self._expert_of[layer])

    @property
    def resident_LE(self) -> NDArray[np.bool_]:
        """Which experts are in slots."""
        resident_LE: NDArray[np.bool_] = self.slot_of_LE != EMPTY
        return resident_LE

    def put(self, layer: int, slot: int, expert: int) -> None:
        """An expert is in a slot from now on.

        Raises:
            ArgumentError: either is taken.
        """
        if self._expert_of[layer][slot] != EMPTY or self.slot_of_LE[layer, expert] != EMPTY:
            raise ArgumentError(
                f"expert {expert} cannot be put in slot {slot} of layer {layer}: one is taken"
            )
        self._expert_of[layer][slot] = expert
        self.slot_of_LE[layer, expert] = slot

    def evict(self, layer: int, expert: int) -> int:
        """An expert is the host's from now on. Returns its slot, now empty.

        Raises:
            ArgumentError: it is in none.
        """
        slot = int(self.slot_of_LE[layer, expert])
        if slot == EMPTY:
            raise ArgumentError(f"expert {expert} of layer {layer} is in no slot")
        self.slot_of_LE[layer, expert] = EMPTY
        self._expert_of[layer][slot] = EMPTY
        return slot

    def drop(self, layer: int) -> None:
        """A layer has no slots any more."""
        self.slot_of_LE[layer] = EMPTY
        self._expert_of[layer] = []
