"""Memory of this process that callers know by its address."""

import bisect
import ctypes
import mmap
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import ArgumentError, SegmentOverlapError
from inlay.store import ObjectView

Buffer = tuple[int, int]  # address, bytes


class BufferHandle(np.ndarray[Any, np.dtype[np.uint8]]):
    """A value in place: bytes through the buffer protocol, as long as the handle lives.

    Of a value on this host nothing is copied, and its memory is pinned meanwhile. Read-only.
    """

    @classmethod
    def of(cls, view: ObjectView) -> "BufferHandle":
        """The handle holds the view, and lets go of it with its own end."""
        memory = np.frombuffer(view.memory, np.uint8)
        view.close()  # what was made of its memory keeps it
        return memory.view(cls)

    def ptr(self) -> int:
        """Its address."""
        return int(self.ctypes.data)

    # Callers of Mooncake call it; NumPy itself reads the array's own size.
    def size(self) -> int:  # type: ignore[override]
        """Its bytes."""
        return int(self.nbytes)

    def __bool__(self) -> bool:
        return self.nbytes > 0

    def __repr__(self) -> str:
        return f"BufferHandle(ptr={self.ptr():#x}, size={self.nbytes})"


class AddressMap:
    """Values by ranges of addresses, which do not overlap. For one thread at a time."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._held: list[tuple[int, Any]] = []  # bytes, value

    def add(self, address: int, size: int, value: Any) -> None:
        """Raise `ArgumentError` for no memory, `SegmentOverlapError` where some is held."""
        if address <= 0 or size <= 0:
            raise ArgumentError(f"no memory: {size} bytes at {address:#x}")
        at = bisect.bisect_right(self._starts, address)
        before = at and self._starts[at - 1] + self._held[at - 1][0] > address
        if before or (at < len(self._starts) and self._starts[at] < address + size):
            raise SegmentOverlapError(
                f"of {size} bytes at {address:#x} some are registered already: unregister first"
            )
        self._starts.insert(at, address)
        self._held.insert(at, (size, value))

    def remove(self, address: int) -> Any:
        """The value of the range that begins there. Raises `ArgumentError` if none does."""
        at = bisect.bisect_left(self._starts, address)
        if at == len(self._starts) or self._starts[at] != address:
            raise ArgumentError(f"no registered memory begins at {address:#x}")
        del self._starts[at]
        return self._held.pop(at)[1]

    def find(self, address: int, size: int) -> tuple[int, Any] | None:
        """Where the range begins that holds these bytes, and its value; None if none does."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0 or address + size > self._starts[at] + self._held[at][0]:
            return None
        return self._starts[at], self._held[at][1]

    def arrays(self) -> "Places":
        """As arrays, for look-ups of many; later changes do not change them."""
        starts = np.array(self._starts, np.int64)
        sizes = np.array([size for size, _ in self._held], np.int64)
        return Places(starts, starts + sizes, [value for _, value in self._held])

    def __len__(self) -> int:
        return len(self._starts)


def host_view(address: int, size: int) -> memoryview | None:
    """Memory of this process as a buffer; None where it is none that can be written.

    Cost: reads the list of this process's memory, some 10 us and more.
    """
    end = address + size
    with open("/proc/self/maps") as file:
        for line in file:
            span, rights, *_ = line.split(maxsplit=2)
            first, last = (int(part, 16) for part in span.split("-"))
            if last <= address:
                continue
            if first > address or not rights.startswith("rw"):
                return None
            if last >= end:
                return memoryview((ctypes.c_uint8 * size).from_address(end - size)).cast("B")
            address = last
    return None


class Places:
    """Ranges of addresses, sorted, and a value of each.

    Args:
        starts_P, ends_P: addresses, the end behind the last byte.
        values: P of them.

    Attributes:
        starts_P, ends_P, values: as given.
        starts: the addresses, as a list.
    """

    def __init__(
        self, starts_P: npt.NDArray[np.int64], ends_P: npt.NDArray[np.int64], values: list[Any]
    ) -> None:
        self.values = values
        self.starts: list[int] = starts_P.tolist()
        self._ends: list[int] = ends_P.tolist()
        self.starts_P = starts_P
        self.ends_P = ends_P

    def find_one(self, address: int, length: int) -> int | None:
        """`find` of one range, several times as quick."""
        at = bisect.bisect_right(self.starts, address) - 1
        return at if at >= 0 and address + length <= self._ends[at] else None

    def find(
        self, addresses_N: npt.NDArray[np.int64], lengths_N: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64] | None:
        """The number of the range that holds each; None where one is in no range as a whole."""
        if not self.starts:
            return None
        found_N = np.searchsorted(self.starts_P, addresses_N, side="right") - 1
        inside_N = (found_N >= 0) & (addresses_N + lengths_N <= self.ends_P[found_N])
        return found_N if bool(inside_N.all()) else None


class MooncakeHostMemAllocator:
    """Memory for buffers, by address: zeroed, in whole pages, from the system.

    `free` gives it back at once; what is not freed goes with the allocator.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, tuple[mmap.mmap, npt.NDArray[np.uint8]]] = {}

    def alloc(self, size: int) -> int:
        """The address of `size` bytes. Raises RuntimeError where there is no such memory."""
        return int(self.array(size).ctypes.data)

    def array(self, size: int) -> npt.NDArray[np.uint8]:
        """As `alloc`, as an array."""
        if size <= 0:
            raise RuntimeError(f"cannot allocate {size} bytes: at least 1")
        try:
            memory = mmap.mmap(-1, size)
        except (OSError, OverflowError) as error:
            raise RuntimeError(f"cannot allocate {size} bytes: {error}") from error
        array = np.frombuffer(memory, np.uint8)
        with self._lock:
            self._held[array.ctypes.data] = memory, array
        return array

    def free(self, address: int) -> int:
        """0, or -1 for an address that `alloc` did not return."""
        with self._lock:
            held = self._held.pop(address, None)
        return -1 if held is None else 0  # the mapping ends with the last reference
