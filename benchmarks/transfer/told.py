"""A process of its own that is told by lines what to do, and answers each with a line."""

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from benchmarks.case import CaseError
from benchmarks.machine import ROOT

ANSWER_S = 120
TAIL_BYTES = 500

# Takes a command and options as `subprocess.Popen` does.
Start = Callable[..., "subprocess.Popen[bytes]"]


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module of this repository."""
    return [sys.executable, "-m", name, *arguments]


class Told:
    """Such a process, which is ready when it has printed its first line.

    Use it in a `with` block, which kills it. What it prints to standard error is kept for the
    message of an error.

    Args:
        command: it.
        start: what starts it, e.g. a `ShapedLinks.start` with its side.
        options: Popen's.

    Attributes:
        process: for its number.
        first: the line that it printed first.

    Raises:
        CaseError: here and from `tell`: it ended, or did not answer within 120 s.
    """

    def __init__(
        self, command: Sequence[str], start: Start = subprocess.Popen, **options: Any
    ) -> None:
        self._name = " ".join(command[-4:])
        self._log = tempfile.TemporaryFile()
        self._unread = b""
        self.process = start(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            cwd=ROOT,
            **options,
        )
        try:
            self.first = self._line()
        except BaseException:
            self.close()
            raise

    def tell(self, line: str = "") -> str:
        """Its answer to this line, each without the line's end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended, which the missing answer tells
            self.process.stdin.write(f"{line}\n".encode())
        return self._line()

    def close(self) -> None:
        """Kill it."""
        with self.process:
            self.process.kill()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _line(self) -> str:
        assert self.process.stdout is not None
        end = time.monotonic() + ANSWER_S
        while b"\n" not in self._unread:
            left_s = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([self.process.stdout], [], [], left_s)
            part = self.process.stdout.read(1 << 16) if ready else b""
            if not part:
                how = "ended" if ready else f"does not answer within {ANSWER_S} s"
                raise CaseError(f"{self._name} {how}: {self._tail()}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def _tail(self) -> str:
        # The process writes at the place of the same open file: it must not be moved.
        size = os.fstat(self._log.fileno()).st_size
        last = os.pread(self._log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        return last.decode(errors="replace").strip() or "it printed no error"
