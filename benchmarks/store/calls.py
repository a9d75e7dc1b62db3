"""Calls of a store, the same for every side, and the loop of a peer that is asked for them.

Knows only the standard library: it runs in the environments of other systems, too.

A question is `WHAT VALUE_BYTES BATCH CALLS`, and WHAT one of `get` (into memory that is made for
it), `get_into` (into memory of the caller), `get_into_far` (the same of an object that was not
read for long), `put` (under new keys), `exists`. Values lie in an arena of the caller, which calls
walk through; the others walk through objects that a store holds of that size.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.transfer.calls import ARENA_BYTES, Call, Walk, serve, timed

# Few enough that each is read again soon, as the blocks of a running conversation are; and so many
# that none is read twice in a run.
NEAR_OBJECTS, FAR_OBJECTS = 64, 16384
FILL_BYTES = 16 << 20  # put at once before anything is timed


class Client(Protocol):
    """What a store can be asked for. Offsets are those of the arena; each names one value."""

    def put(self, keys: Sequence[str], offsets: Sequence[int], value_bytes: int) -> None:
        """New ones."""

    def get(self, keys: Sequence[str], value_bytes: int) -> None:
        """Into memory that is made for them."""

    def get_into(self, keys: Sequence[str], offsets: Sequence[int], value_bytes: int) -> None:
        """Into the arena."""

    def exists(self, keys: Sequence[str]) -> None:
        """All of them are there."""

    def remove(self, keys: Sequence[str]) -> None:
        """Whether they are there or not."""


class Objects:
    """The objects that reads go through, of one size at a time, and those that puts make.

    Args:
        client: of the store.
        view: looks at values in place; None: the store has no such thing.
    """

    def __init__(
        self, client: Client, view: Callable[[Sequence[str], int], None] | None = None
    ) -> None:
        self._client = client
        self._view = view
        self._walk = Walk()
        self._numbers = itertools.count()
        self._held = (0, 0)
        self._keys: list[str] = []
        self._put: list[str] = []

    def ask(self, what: str, value_bytes: int, batch: int, calls: int) -> tuple[float, float]:
        """Make `calls` calls of `batch` keys each: seconds of all of them, and the median one's."""
        if what != "put":
            self._hold(value_bytes, FAR_OBJECTS if what == "get_into_far" else NEAR_OBJECTS, batch)
        call = self._call(what, value_bytes, batch)
        times = timed(lambda thread: call, self._walk, value_bytes * batch, 1, calls)
        self._remove(self._put)
        self._put = []
        return times

    def _call(self, what: str, value_bytes: int, batch: int) -> Call:
        def put(offset: int) -> None:
            keys = self._new_keys(batch)
            self._put += keys
            self._client.put(keys, places(offset), value_bytes)

        def get(offset: int) -> None:
            self._client.get(self._at(offset, batch), value_bytes)

        def get_into(offset: int) -> None:
            self._client.get_into(self._at(offset, batch), places(offset), value_bytes)

        def view(offset: int) -> None:
            assert self._view is not None
            self._view(self._at(offset, batch), value_bytes)

        def exists(offset: int) -> None:
            self._client.exists(self._at(offset, batch))

        def places(offset: int) -> range:
            return range(offset, offset + batch * value_bytes, value_bytes)

        return {
            "put": put, "get": get, "get_into": get_into, "get_into_far": get_into, "view": view,
            "exists": exists,
        }[what]  # fmt: skip

    def _hold(self, value_bytes: int, most: int, batch: int) -> None:
        count = max(batch, min(most, ARENA_BYTES // value_bytes) // batch * batch)
        if self._held == (value_bytes, count):
            return
        self._remove(self._keys)
        self._keys = self._new_keys(count)
        step = max(1, min(256, FILL_BYTES // value_bytes))
        for at in range(0, count, step):
            keys = self._keys[at : at + step]
            self._client.put(keys, range(0, len(keys) * value_bytes, value_bytes), value_bytes)
        self._held = (value_bytes, count)

    def _at(self, offset: int, batch: int) -> list[str]:
        # Whole batches, wherever a walk in other steps has ended.
        first = offset // (self._held[0] * batch) % (len(self._keys) // batch) * batch
        return self._keys[first : first + batch]

    def _remove(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), 256):
            self._client.remove(keys[at : at + 256])

    def _new_keys(self, count: int) -> list[str]:
        """32 characters each, as the digests of KV blocks are."""
        return [f"{number:032x}" for number in itertools.islice(self._numbers, count)]


def answer(answers: int, client: Client) -> None:
    """Be a peer: answer questions until there are no more, and end the process."""
    serve(answers, Objects(client).ask)
