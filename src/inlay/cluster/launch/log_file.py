"""A process's log: a file that is moved aside when it is large, and its last lines."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

TAIL_LINES = 20


class Log(Protocol):
    """Takes what a process writes to its standard error, and lines that none asked for.

    Attributes:
        tail: the last lines that are not empty.
    """

    @property
    def tail(self) -> Sequence[str]: ...  # noqa: D102

    def write(self, data: bytes) -> None:
        """Append."""
        ...

    def close(self) -> None:
        """There will be no more."""
        ...


class LogFile:
    """Bytes of a log, as they come.

    Args:
        file: is appended to. The one before it is `file` with `.1` behind.
        max_bytes: a file of this size is moved aside.
    """

    def __init__(self, file: Path, *, max_bytes: int = 16 * 2**20) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial = b""
        self._stream: BinaryIO = file.open("ab", buffering=0)
        self._size_bytes = self._stream.tell()

    @property
    def tail(self) -> Sequence[str]:
        """The last lines that are not empty."""
        last = self._partial.decode(errors="replace").strip()
        return (*self._tail, *([last] if last else []))[-TAIL_LINES:]

    def write(self, data: bytes) -> None:
        """Append; where the disk takes no more, the lines are lost and the process goes on."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-4096:]
        for line in lines[-TAIL_LINES:]:
            if line.strip():
                self._tail.append(line.decode(errors="replace").rstrip())
        try:
            if self._size_bytes + len(data) > self._max_bytes and self._size_bytes:
                self._rotate()
            self._size_bytes += self._stream.write(data)
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _rotate(self) -> None:
        self._stream.close()
        self._file.replace(self._file.with_name(self._file.name + ".1"))
        self._stream = self._file.open("ab", buffering=0)
        self._size_bytes = 0
