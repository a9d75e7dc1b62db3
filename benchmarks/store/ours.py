"""Our store as the benchmarks ask it: a master and a node in processes of their own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from benchmarks.store.calls import Objects
from benchmarks.transfer.calls import ARENA_BYTES
from inlay.serve.bench.store import own_store
from inlay.store import Store

VALUE_FILL = 7
TOUCH_BYTES = 16 << 20


class StoreClient:
    """Values lie in an array, which nobody registered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.arena = np.full(ARENA_BYTES, VALUE_FILL, np.uint8)

    def put(self, keys: Sequence[str], offsets: Sequence[int], value_bytes: int) -> None:
        """New ones."""
        if len(keys) == 1:
            self.store.put(keys[0], self.arena[offsets[0] : offsets[0] + value_bytes])
        else:
            self.store.put_many(keys, self._places(offsets, value_bytes))

    def get(self, keys: Sequence[str], value_bytes: int) -> None:
        """As bytes."""
        values = [self.store.get(keys[0])] if len(keys) == 1 else self.store.get_many(keys)
        assert all(value is not None and len(value) == value_bytes for value in values)

    def get_into(self, keys: Sequence[str], offsets: Sequence[int], value_bytes: int) -> None:
        """Into the arena."""
        if len(keys) == 1:
            place = self.arena[offsets[0] : offsets[0] + value_bytes]
            assert self.store.get_into(keys[0], place) == value_bytes
        else:
            sizes = self.store.get_into_many(keys, self._places(offsets, value_bytes))
            assert all(size == value_bytes for size in sizes)

    def view(self, keys: Sequence[str], value_bytes: int) -> None:
        """In place."""
        with self.store.view(keys[0]) as memory:
            assert memory.nbytes == value_bytes

    def exists(self, keys: Sequence[str]) -> None:
        """All of them are there."""
        if len(keys) == 1:
            assert self.store.exists(keys[0])
        else:
            assert all(self.store.exists_many(keys))

    def remove(self, keys: Sequence[str]) -> None:
        """Whether they are there or not."""
        self.store.remove_many(keys)

    def _places(self, offsets: Sequence[int], value_bytes: int) -> list[np.ndarray]:
        return [self.arena[offset : offset + value_bytes] for offset in offsets]


def touch(client: StoreClient, memory_bytes: int) -> None:
    """Put and read values all over the node's memory: afterwards its pages are in this process's
    mappings, as they are in those of one that has run for a while.
    """
    keys = [f"touch-{number}" for number in range(memory_bytes // TOUCH_BYTES)]
    for key in keys:
        client.put([key], [0], TOUCH_BYTES)
        client.get_into([key], [0], TOUCH_BYTES)
    client.remove(keys)


@contextmanager
def running_store(
    memory_bytes: int, transports: Sequence[str] | None = None
) -> Iterator[tuple[Objects, StoreClient]]:
    """A store whose memory is another process's, asked as the peers are.

    Args:
        memory_bytes: of the node.
        transports: that this process's client uses; None: all.
    """
    with (
        own_store(memory_bytes) as own,
        Store.connect(own.master, token=own.token, transports=transports) as store,
    ):
        client = StoreClient(store)
        if transports is None:
            touch(client, memory_bytes)
        yield Objects(client, client.view), client
