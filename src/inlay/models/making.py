"""What was made of which tensors, so that of new weights only what has changed is made.

What is made is a matrix of the decoder, the heads of latent attention, shared experts, or one
routed expert. Knows tensors by name alone.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

Key = tuple[str | int, ...]
Read = tuple[str, int | None]
"""A tensor that was read, and which one of its matrices; None: all of it."""

_THREADS = 4  # that compare tensors, which is as fast as memory, or a disk


@dataclass(frozen=True)
class Made:
    """Something of a model.

    Attributes:
        value: a backend's; of experts that lie together the memory of all.
        device: where it is.
        nbytes: memory that it takes.
        reads: what it was made of.
    """

    value: Any
    device: str
    nbytes: int
    reads: frozenset[Read]


class Making:
    """All that one source has made, and what it need not make. Threads may make at once."""

    def __init__(self) -> None:
        self._made: dict[Key, Made] = {}
        self._kept: dict[Key, Made] = {}
        self._thread = threading.local()

    def keep(self, earlier: "Making", same: Callable[[Read], bool]) -> Mapping[str, int]:
        """Take over what another source made, where it would be the same.

        Args:
            same: whether a tensor has the same content for both; called by several threads.

        Returns:
            Memory that is not needed a second time, of each device.
        """
        made = dict(earlier._made)
        reads = sorted(
            {read for one in made.values() for read in one.reads},
            key=lambda read: (read[0], read[1] or 0),
        )
        with ThreadPoolExecutor(_THREADS, "inlay-compare") as pool:
            unchanged = {
                read for read, is_same in zip(reads, pool.map(same, reads), strict=True) if is_same
            }
        self._kept = {key: one for key, one in made.items() if one.reads <= unchanged}
        return _spared(made.values(), self._kept.values())

    def kept(self, key: Key) -> Made | None:
        """What there is already."""
        return self._kept.get(key)

    def take(self, key: Key) -> Any:
        """It is part of this source's, too."""
        self._made[key] = self._kept[key]
        return self._kept[key].value

    def once(self, key: Key, device: str, make: Callable[[], Any]) -> Any:
        """What there is already, or what `make` gives, which has `nbytes`."""
        if key in self._kept:
            return self.take(key)
        with self.reading() as reads:
            value = make()
        self.add(key, Made(value, device, value.nbytes, frozenset(reads)))
        return value

    def add(self, key: Key, made: Made) -> None:
        """It has been made."""
        self._made[key] = made

    def move(self, key: Key, to: Any) -> None:
        """What there is already has been copied."""
        moved = self._kept[key] = replace(self._kept[key], value=to)
        self._made[key] = moved

    @contextmanager
    def reading(self) -> Iterator[set[Read]]:
        """What this thread reads inside this block."""
        reads: set[Read] = set()
        self._thread.reads = reads
        try:
            yield reads
        finally:
            self._thread.reads = None

    def read(self, name: str, matrix: int | None) -> None:
        """This thread reads a tensor."""
        reads: set[Read] | None = getattr(self._thread, "reads", None)
        if reads is not None:
            reads.add((name, matrix))

    def end(self) -> int:
        """All is there. Lets go of what was not taken over; returns the bytes of what was made."""
        fresh = [one for key, one in self._made.items() if self._kept.get(key) is not one]
        self._kept = {}
        return sum(one.nbytes for one in fresh)


def _spared(made: Iterable[Made], kept: Iterable[Made]) -> Counter[str]:
    """Of experts that lie together all have to be kept, or there is new memory for all."""
    count_made = Counter(id(one.value) for one in made)
    kept = list(kept)
    count_kept = Counter(id(one.value) for one in kept)
    spared: Counter[str] = Counter()
    for one in kept:
        if count_kept[id(one.value)] == count_made[id(one.value)]:
            spared[one.device] += one.nbytes
    return spared
