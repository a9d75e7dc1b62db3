"""The prefix index in plain Python: serves where there is no extension, and is the tests' model.

`inlay._native.cluster.PrefixIndex` has the same methods and gives the same answers, those about
memory apart.
"""

import itertools
import sys
from collections.abc import Iterator

import numpy as np

from inlay.core.block_hash import DIGEST_BYTES
from inlay.core.errors import ArgumentError, ResourceError

MAX_SLOTS = 4096


class PrefixIndex:
    """Of each slot the set of its digests; what is expected lies apart."""

    def __init__(self, seed0: int, seed1: int) -> None:
        self._known: dict[int, set[bytes]] = {}
        self._young: dict[int, set[bytes]] = {}
        self._old: dict[int, set[bytes]] = {}

    def add(self) -> int:
        """The lowest free slot, from now on in use."""
        slot = next(slot for slot in itertools.count() if slot not in self._known)
        if slot == MAX_SLOTS:
            raise ResourceError(f"the prefix index has {MAX_SLOTS} slots at most")
        self._known[slot] = set()
        return slot

    def remove(self, slot: int) -> None:
        """Forget all of a slot, which is free then."""
        self._blocks(slot)
        for sets in (self._known, self._young, self._old):
            sets.pop(slot, None)

    def apply(self, slot: int, stored: bool, digests: bytes) -> None:
        """Blocks of a slot came or went."""
        change = self._blocks(slot).update if stored else self._blocks(slot).difference_update
        change(_split(digests))

    def load(self, slot: int, digests: bytes) -> None:
        """A slot has these blocks and no others."""
        self._blocks(slot)
        self._known[slot] = set(_split(digests))

    def expect(self, slot: int, digests: bytes) -> None:
        """A slot will have these blocks; those that lead and are known are left out."""
        known = self._blocks(slot)
        chain = list(_split(digests))
        self._young.setdefault(slot, set()).update(chain[_leading(chain, known) :])

    def turn(self) -> None:
        """What was expected before the last turn is forgotten."""
        self._old, self._young = self._young, {}

    def match(self, digests: bytes, lengths: np.ndarray) -> None:
        """Leading blocks of a chain at each slot."""
        chain = list(_split(digests))
        self._require_room(len(lengths))
        lengths[:] = 0
        for slot in self._known:
            sets = (sets.get(slot, set()) for sets in (self._known, self._young, self._old))
            lengths[slot] = _leading(chain, *sets)

    def match_many(self, digests: bytes, num_blocks: np.ndarray, lengths: np.ndarray) -> None:
        """The same for chains that lie one behind the other."""
        if int(num_blocks.sum()) * DIGEST_BYTES != len(digests):
            raise ArgumentError(
                f"num_blocks: sum is {num_blocks.sum()}, "
                f"there are {len(digests) // DIGEST_BYTES} digests"
            )
        ends = np.cumsum(num_blocks, dtype=np.int64) * DIGEST_BYTES
        for row, end, count in zip(lengths, ends, num_blocks, strict=True):
            self.match(digests[end - int(count) * DIGEST_BYTES : end], row)

    def num_blocks(self, slot: int) -> int:
        """Blocks that a slot has."""
        return len(self._blocks(slot))

    def memory_bytes(self) -> int:
        """Of the sets; their digests, which they share with nobody, take twice as much."""
        sets = (*self._known.values(), *self._young.values(), *self._old.values())
        return sum(sys.getsizeof(blocks) for blocks in sets)

    @property
    def num_slots(self) -> int:
        """One more than the highest slot in use."""
        return max(self._known, default=-1) + 1

    @property
    def num_expected(self) -> int:
        """Different blocks that were expected since the last turn."""
        return len(set().union(*self._young.values()))

    def __len__(self) -> int:
        return len(set().union(*self._known.values()))

    def _blocks(self, slot: int) -> set[bytes]:
        if slot not in self._known:
            raise ArgumentError(f"slot: {slot} is not in use")
        return self._known[slot]

    def _require_room(self, columns: int) -> None:
        if columns < self.num_slots:
            raise ArgumentError(
                f"lengths: must have at least {self.num_slots} elements, got {columns}"
            )


def _leading(chain: list[bytes], *sets: set[bytes]) -> int:
    """How many leading blocks of a chain are in one of the sets."""
    if not chain or not any(chain[0] in blocks for blocks in sets):
        return 0
    found, beyond = 1, len(chain) + 1
    while beyond - found > 1:
        middle = (found + beyond) // 2
        if any(chain[middle - 1] in blocks for blocks in sets):
            found = middle
        else:
            beyond = middle
    return found


def _split(digests: bytes) -> Iterator[bytes]:
    if len(digests) % DIGEST_BYTES:
        raise ArgumentError(f"digests: must have {DIGEST_BYTES} bytes each, got {len(digests)}")
    return (digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES))
