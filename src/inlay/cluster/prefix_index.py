"""Which instance has which leading blocks of a prompt.

Instances have slots, small numbers that are given again; the store may have one like any other.
The index knows digests alone: no tokens, no pages, no clock. It is fed with what instances say of
their blocks, and with what they are expected to have soon because a request is on its way there.

An instance never has a block without its parent, so that the blocks of a chain which it has are
the leading ones, and a search needs the logarithm of the chain's length. Where that does not hold
for a moment, because one was removed while its children are expected, the answer is between the
leading blocks and the last one that is there.
"""

import math
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inlay.cluster import _backend
from inlay.core.errors import ArgumentError
from inlay.core.instance_messages import KvChange

# Shape suffixes: S slots, B requests.
Lengths = NDArray[np.int32]


class PrefixIndex:
    """Leading blocks of each instance, known and expected. For up to 4,096 slots.

    Args:
        expect_s: for how long an expected block counts at least; at most twice as long.
        max_expected: where more different blocks than that are expected, the older half is
            forgotten early. They take as much memory as known ones.

    Calls of several threads wait for each other; `load`, `remove` and large `apply` let other
    threads of Python run.

    Cost: 32 to 48 bytes for a block in at most four slots, and a bit per slot for one in more.
    """

    def __init__(self, *, expect_s: float = 10.0, max_expected: int = 1 << 20) -> None:
        if not (math.isfinite(expect_s) and expect_s > 0):
            raise ArgumentError(f"expect_s: must be above 0, got {expect_s}")
        if max_expected < 1:
            raise ArgumentError(f"max_expected: must be at least 1, got {max_expected}")
        self.expect_s = expect_s
        self.max_expected = max_expected
        self._index = _backend.PrefixIndex(secrets.randbits(64), secrets.randbits(64))
        # Time in units of expect_s: what is expected in one counts until the end of the next.
        self._period: int | None = None

    def add(self) -> int:
        """Take the lowest free slot, which has no blocks.

        Raises:
            ResourceError: all slots are in use.
        """
        return self._index.add()

    def remove(self, slot: int) -> None:
        """Free a slot and forget what it has and is expected to have.

        Cost: a walk through the whole index, 5 to 10 ms for a million blocks.
        """
        self._index.remove(slot)

    def apply(self, slot: int, changes: Sequence[KvChange]) -> None:
        """Take over what happened to a slot's blocks. Blocks that are there or gone already count
        for nothing.

        Raises:
            ArgumentError: the slot is not in use, or digests have another length. What came before
                in `changes` is taken over.

        Cost: 0.1 to 0.2 us per block.
        """
        for change in changes:
            self._index.apply(slot, change.stored, change.digests)

    def load(self, slot: int, digests: bytes) -> None:
        """Replace all that a slot has, not what it is expected to have.

        Args:
            digests: 16 bytes each, joined.

        Cost: that of `apply`, and of `remove` if the slot has any.
        """
        self._index.load(slot, digests)

    def expect(self, slot: int, digests: bytes, now_s: float) -> None:
        """A request with this chain goes to a slot: count it as there for `expect_s` or longer.

        Whatever the instance says meanwhile, the expectation stays: it runs out by itself.

        Args:
            digests: of the whole prompt, from its first block.
            now_s: of the clock that `match` takes.
        """
        self._forget(now_s)
        self._index.expect(slot, digests)
        if self._index.num_expected > self.max_expected:
            self._index.turn()

    def match(
        self, digests: bytes, now_s: float | None = None, out_S: Lengths | None = None
    ) -> Lengths:
        """How many leading blocks of a chain each slot has, or is expected to have.

        Args:
            digests: of the chain, from its first block.
            now_s: time that runs out expectations; None: that of the call before.
            out_S: where to write the answer, at least `num_slots` long; what lies behind is 0.

        Returns:
            `out_S`, or `num_slots` numbers; 0 for slots that are not in use.

        Cost: 0.5 us where no slot has the first block; 4 to 8 us for 500 blocks at 64 slots with a
            million others.
        """
        if now_s is not None:
            self._forget(now_s)
        if out_S is None:
            out_S = np.empty(self._index.num_slots, np.int32)
        self._index.match(digests, out_S)
        return out_S

    def match_many(
        self, digests: bytes, num_blocks_B: NDArray[np.uint32], now_s: float | None = None
    ) -> Lengths:
        """`match` for many chains, whose digests lie one behind the other; [B, S]."""
        if now_s is not None:
            self._forget(now_s)
        lengths_BS = np.empty((len(num_blocks_B), self._index.num_slots), np.int32)
        self._index.match_many(digests, num_blocks_B, lengths_BS)
        return lengths_BS

    @property
    def native(self) -> _backend.PrefixIndex:
        """What other native code may feed: the simulator's world."""
        return self._index

    @property
    def num_slots(self) -> int:
        """One more than the highest slot in use: the length of what `match` returns."""
        return self._index.num_slots

    def num_blocks(self, slot: int) -> int:
        """Blocks that a slot is known to have."""
        return self._index.num_blocks(slot)

    @property
    def num_expected(self) -> int:
        """Different blocks that were expected of late and had not been known."""
        return self._index.num_expected

    def __len__(self) -> int:
        """Different blocks that are known."""
        return len(self._index)

    def memory_bytes(self) -> int:
        """Of the tables."""
        return self._index.memory_bytes()

    def _forget(self, now_s: float) -> None:
        period = math.floor(now_s / self.expect_s)
        if self._period is None:
            self._period = period
        for _ in range(min(2, period - self._period)):
            self._index.turn()
        self._period = max(self._period, period)
