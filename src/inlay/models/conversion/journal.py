"""What a conversion has done, in a file that is also its lock.

Lines of JSON: who works here, which conversion it is, which pieces are on disk, and that all is
sealed. A line is appended only after what it tells of was flushed, so that it holds after any end
of the process or of the machine; a line that was cut off counts as not there.
"""

import errno
import json
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inlay.core.errors import ArgumentError
from inlay.core.lock_file import open_locked
from inlay.core.records import parse_record


class Journal:
    """The open journal of one conversion; nobody else has it open.

    Args:
        file: made where it is missing; its directory exists.

    Attributes:
        identity: of the conversion that it is about; None in a new one.
        done: digests of the pieces that are on disk, by number.
        sealed: whether all files are whole.

    Raises:
        ArgumentError: another process has it; says which.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._fd = _open_locked(file)
        self.identity: Mapping[str, Any] | None = None
        self.done: dict[int, str] = {}
        self.sealed = False
        text = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        whole = text[: text.rfind(b"\n") + 1]
        os.ftruncate(self._fd, len(whole))
        try:
            for line in whole.decode().splitlines():
                self._take(parse_record(line))
        except (ValueError, AttributeError, TypeError):
            self._forget()  # damaged: what it says is worth nothing
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
        self._append({"holder": self._holder})

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Note which conversion this is; it is a new one."""
        self.identity = dict(identity)
        self._append({"identity": self.identity})

    def add(self, pieces: Mapping[int, str]) -> None:
        """Note pieces that were flushed, with their digests."""
        self.done |= pieces
        self._append({"pieces": {str(number): digest for number, digest in pieces.items()}})

    def seal(self) -> None:
        """Note that all files are whole and flushed."""
        self.sealed = True
        self._append({"sealed": True})

    def clear(self) -> None:
        """Forget all but who has it."""
        self._forget()
        self._append({"holder": self._holder})

    def remove(self) -> None:
        """Take the file away; whoever waits for the lock sees that it is another one."""
        self._file.unlink()

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._fd)

    def _forget(self) -> None:
        os.ftruncate(self._fd, 0)
        self.identity, self.done, self.sealed = None, {}, False

    def _take(self, line: Mapping[str, Any]) -> None:
        if "identity" in line:
            self.identity = line["identity"]
        for number, digest in line.get("pieces", {}).items():
            self.done[int(number)] = digest
        self.sealed |= line.get("sealed", False)

    def _append(self, line: Mapping[str, Any]) -> None:
        data, before = json.dumps(line).encode() + b"\n", os.fstat(self._fd).st_size
        if os.write(self._fd, data) != len(data):
            os.ftruncate(self._fd, before)  # else the next line would be read as a part of this one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._file))
        os.fdatasync(self._fd)


def _open_locked(file: Path) -> int:
    try:
        return open_locked(file)
    except BlockingIOError:
        raise ArgumentError(
            f"{file.parent.parent} is being written by {_holder(file)}: wait for it, or name "
            "another directory"
        ) from None


def _holder(file: Path) -> str:
    """Who wrote the last line about a holder, as far as it can be read."""
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:  # it ends just now
        lines = []
    for line in reversed(lines):
        try:
            holder = parse_record(line.decode())["holder"]
            return f"process {holder['pid']} on {holder['host']} (since {holder['since']})"
        except (ValueError, KeyError, TypeError):
            continue
    return "another process"
