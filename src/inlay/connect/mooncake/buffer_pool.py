"""`BufferPool`: memory that is registered with a store once and lent again and again."""

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from inlay.connect.mooncake.config import DEFAULT_LOCAL_BUFFER_SIZE
from inlay.connect.mooncake.opening import Opening
from inlay.core.errors import StoreClosed

_View = npt.NDArray[np.uint8]


class _Block:
    """Memory of one size class, registered while the pool has it."""

    def __init__(self, memory: _View) -> None:
        self.memory = memory
        self.address = int(memory.ctypes.data)


class BufferLease:
    """A piece of a pool's memory, until `release`, the end of a `with` or of the object.

    Attributes:
        size: its bytes, as many as were asked for.
    """

    def __init__(self, pool: "BufferPool", block: _Block, size: int) -> None:
        self.size = size
        self._block: _Block | None = block
        lent = block.memory[:size]
        self._view = lent.data
        # All views of the lease hold this array: the block is free when the last of them is gone.
        self._end = weakref.finalize(lent, pool.take_back, block)
        self._end.atexit = False

    @property
    def ptr(self) -> int:
        """Its address. Raises RuntimeError after `release`."""
        if self._block is None:
            raise RuntimeError("buffer lease is closed")
        return self._block.address

    @property
    def buffer(self) -> memoryview:
        """A view of its bytes, which may be written. Raises BufferError after `release`."""
        if self._block is None:
            raise BufferError("buffer lease is closed")
        return self._view[:]

    def release(self) -> None:
        """Give it back; again changes nothing. Raises RuntimeError while views of it are held."""
        if self._block is None:
            return
        self._view.release()
        held = self._end.peek()
        if held is not None:
            self._view = held[0].data
            raise RuntimeError("cannot release buffer while exported views exist")
        self._block = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class BufferPool:
    """Memory of a store's caller in size classes, powers of two from `min_size_class` on.

    What is given back stays registered for the next one of its class. May be used by any thread.
    A pool that goes without `close` leaves its memory to the store, as long as that lives.

    Args:
        store: set up.
        max_bytes: registered at once; 0: 1 GiB.
        min_size_class, max_size_class: the least block, and the largest (None: any).
        alignment: taken: blocks begin at pages.
        block_on_exhaustion: whether `acquire` waits where it is not told.
        default_timeout: seconds of such a wait; None: as long as it takes.
        max_regions: blocks at once; None: any number.
        prewarm_size, prewarm_count: blocks to make now.

    Raises:
        RuntimeError: sizes that cannot be, or a store that is not set up.
    """

    def __init__(
        self,
        store: Opening,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8 << 20,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        try:
            _ = store.opened
        except (StoreClosed, AttributeError):
            raise RuntimeError("MooncakeDistributedStore is not initialized") from None
        if min_size_class <= 0 or alignment <= 0:
            raise RuntimeError("min_size_class and alignment must be positive")
        self._store = store
        self._most = max_bytes or DEFAULT_LOCAL_BUFFER_SIZE
        self._least_class, self._largest_class = min_size_class, max_size_class
        self._blocks = block_on_exhaustion
        self._timeout_s = default_timeout
        self._most_blocks = max_regions
        self._changed = threading.Condition(threading.RLock())  # a lease may end in any place
        self._free: list[_Block] = []
        self._lent = 0
        self._bytes = self._count = 0
        self._closed = False
        if prewarm_size is not None:
            self.prewarm(prewarm_size, prewarm_count)

    def acquire(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """A lease of `size` bytes.

        Raises:
            RuntimeError: more than the pool may have, nothing is free (in time), or it is closed.
            TypeError: less than 0.
        """
        wanted = self._class_of(size)
        waits = self._blocks if block is None else block
        timeout = self._timeout_s if timeout is None else timeout
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                self._check_open()
                found = self._take(wanted)
                if found is not None:
                    self._lent += 1
                    return BufferLease(self, found, size)
                if not waits:
                    raise RuntimeError("buffer pool is exhausted")
                left = None if end is None else end - time.monotonic()
                if (left is not None and left <= 0) or not self._changed.wait(left):
                    raise RuntimeError("timed out waiting for buffer")

    @contextmanager
    def buffer(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> Iterator[BufferLease]:
        """`with pool.buffer(size) as lease`."""
        with self.acquire(size, block, timeout) as lease:
            yield lease

    def prewarm(self, size: int, count: int) -> None:
        """Make free blocks for `size` bytes, `count` of them. Raises RuntimeError for no room."""
        wanted = self._class_of(size)
        with self._changed:
            self._check_open()
            for _ in range(count - sum(block.memory.nbytes == wanted for block in self._free)):
                made = self._make(wanted)
                if made is None:
                    raise RuntimeError("buffer pool is exhausted")
                self._free.append(made)

    def close(self) -> None:
        """Unregister all; again changes nothing. Raises RuntimeError while leases are out."""
        with self._changed:
            if self._lent:
                raise RuntimeError("cannot close buffer pool with active leases")
            self._closed = True
            while self._free:
                self._drop(self._free.pop())
            self._changed.notify_all()

    def take_back(self, block: _Block) -> None:
        """A lease has ended."""
        with self._changed:
            self._lent -= 1
            self._free.append(block)
            self._changed.notify_all()

    def _class_of(self, size: int) -> int:
        if size < 0:
            raise TypeError(f"a buffer has at least 0 bytes, got {size}")
        wanted = self._least_class
        while wanted < size:
            wanted *= 2
        if wanted > self._most or (self._largest_class is not None and size > self._largest_class):
            raise RuntimeError("requested buffer size exceeds pool capacity")
        return wanted

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("buffer pool is closed")

    def _take(self, wanted: int) -> _Block | None:
        for at, block in enumerate(self._free):
            if block.memory.nbytes == wanted:
                return self._free.pop(at)
        return self._make(wanted)

    def _make(self, wanted: int) -> _Block | None:
        """A new block; free ones of other classes make room for it."""
        while self._free and not self._fits(wanted):
            self._drop(self._free.pop(0))
        if not self._fits(wanted):
            return None
        memory = self._store.own_memory.array(wanted)
        self._store.register_buffer(int(memory.ctypes.data), wanted)
        self._bytes += wanted
        self._count += 1
        return _Block(memory)

    def _fits(self, wanted: int) -> bool:
        more = self._most_blocks is None or self._count < self._most_blocks
        return more and self._bytes + wanted <= self._most

    def _drop(self, block: _Block) -> None:
        self._store.unregister_buffer(block.address)
        self._store.own_memory.free(block.address)
        self._bytes -= block.memory.nbytes
        self._count -= 1
