"""Eviction policies, the ones that the master runs: for the simulator, benchmarks and tests.

A policy decides which object of a segment goes when room is needed. It holds no bytes and no keys,
reads no clock and starts nothing; the contract is that of `native/store/eviction.h`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inlay.core.errors import ArgumentError

POLICIES = ("cost", "lru", "s3fifo")


class Newcomer(NamedTuple):
    """An object that is added to a policy.

    Attributes:
        id: a number below 2**31 that no other object there has; memory is taken up to the largest.
        parent: the object that this one follows in its chain, None if there is none.
        hash: of its key, 64 well-mixed bits.
        bytes: its size.
        recompute_ns: to compute it again when its parent is there; 0 means unknown.
        soft_pin: it goes when nothing else can.
    """

    id: int
    parent: int | None = None
    hash: int = 0
    bytes: int = 1
    recompute_ns: int = 0
    soft_pin: bool = False


class EvictionPolicy:
    """Which object goes next, by one of `POLICIES`. Not safe for several threads at once.

    Args:
        name: `cost` (recompute time x probability of reuse / bytes, a parent never before its
            child), `lru` or `s3fifo`.

    Raises:
        ArgumentError: no policy has that name.

    Cost: constant per object of a call; memory per object up to the largest number: 9 bytes for
        lru, 10 for s3fifo, 16 for cost, and these two 3.6 to 7.1 for what was evicted.
    """

    def __init__(self, name: str = "cost") -> None:
        if name not in POLICIES:
            raise ArgumentError(f"eviction: {name!r}, allowed: {', '.join(POLICIES)}")
        from inlay._native import store as native

        self._native = native.EvictionPolicy(name)

    def add(self, chain: Sequence[Newcomer], now_ns: int) -> None:
        """Objects that were stored: blocks of one chain, parents first, or any one object.

        Parents that are there already have been hit before. Times never go back.

        Raises:
            ArgumentError: an object is there already, or its number or size is out of range.
        """
        self._native.add(chain, now_ns)

    def hit(self, chain: Sequence[int], now_ns: int) -> None:
        """Objects that were read, parents first. Those that are not there are passed over."""
        self._native.hit(chain, now_ns)

    def victim(self, now_ns: int, held: Callable[[int], bool] | None = None) -> int | None:
        """The object to evict next; it stays until `evict`. None: every object is held.

        What is held is asked about again after a second, and has kept its place by then.
        """
        return self._native.victim(now_ns, held)

    def evict(self, id: int, hash: int) -> None:
        """Take an object out and remember that it was here.

        Raises:
            ArgumentError: it is not there.
        """
        self._native.evict(id, hash)

    def remove(self, id: int) -> None:
        """Take an object out that its owner removed, if it is there."""
        self._native.remove(id)

    def order(self) -> list[tuple[str, list[int]]]:
        """Every list of the policy, coldest first. Cost: all objects."""
        return self._native.order()

    def memory_bytes(self) -> int:
        """Memory that the policy takes."""
        return self._native.memory_bytes()

    @property
    def newcomers_share(self) -> float | None:
        """`cost`: the part of the room at which newcomers go first; None for others."""
        return self._native.newcomers_share

    def __contains__(self, id: int) -> bool:
        return id in self._native

    def __len__(self) -> int:
        return len(self._native)
