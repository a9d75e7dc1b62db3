"""A file that is a lock, which ends with its process however that ends."""

import fcntl
import os
from pathlib import Path


def open_locked(file: Path) -> int:
    """Open a file for reading and appending and lock it; made where it is missing.

    Whoever has the lock may remove the file, and gives the lock back by that, or by closing.

    Returns:
        Its descriptor, the caller's.

    Raises:
        BlockingIOError: another one has it.
        OSError: it cannot be made.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_name_of(file, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever ended meanwhile has removed it: the next one is opened


def _is_name_of(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
