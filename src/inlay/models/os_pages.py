"""The operating system's pages of mapped files: brought in before use, given back after it."""

import ctypes
import errno
import mmap
import os
import threading
from functools import cache
from typing import Any

# Of Linux 5.14 on; newer than Python's `mmap` module, whose own `madvise` keeps the GIL besides.
_MADV_POPULATE_READ = 22


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


@cache
def _memcmp() -> Any:
    function = ctypes.CDLL(None).memcmp
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return function


def equal(address: int, other: int, nbytes: int) -> bool:
    """Whether two ranges, brought in before, have the same bytes; without the GIL."""
    return nbytes == 0 or _memcmp()(address, other, nbytes) == 0


def bring_in(address: int, nbytes: int) -> None:
    """Read what is not in memory yet of a mapped range, so that touching it does not wait.

    An older kernel than Linux 5.14 only begins to read it.

    Raises:
        OSError: the file has become shorter than its mapping, or its disk fails. Touching the range
            would end the process.
    """
    if _advise(address, nbytes, _MADV_POPULATE_READ) == errno.EINVAL:
        _advise(address, nbytes, mmap.MADV_WILLNEED)


class ReadPages(threading.local):
    """What each thread has brought in of files that are mapped and never written to."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def bring_in(self, address: int, nbytes: int) -> None:
        """As the function."""
        bring_in(address, nbytes)
        self._ranges.append((address, nbytes))

    def give_back(self) -> None:
        """Take what this thread has brought in out of the process.

        These pages stay in the system's cache for as long as nobody needs the room, and come again
        when they are touched.
        """
        for address, nbytes in self._ranges:
            _advise(address, nbytes, mmap.MADV_DONTNEED)
        self._ranges.clear()


def _advise(address: int, nbytes: int, advice: int) -> int:
    """0, or EINVAL where the system does not know the advice."""
    first = address - address % mmap.PAGESIZE
    if nbytes == 0 or _madvise()(first, address + nbytes - first, advice) == 0:
        return 0
    number = ctypes.get_errno()
    if number != errno.EINVAL:
        raise OSError(number, os.strerror(number))
    return number
