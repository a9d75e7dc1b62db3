"""A program in a terminal of its own, as a person would use it. Standard library only."""

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Sequence
from types import TracebackType

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


def _take_terminal() -> None:
    """Make standard input the terminal of this new session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """Runs a command on a pseudo terminal; Ctrl-C typed there reaches the whole program.

    Attributes:
        text: everything shown so far, without escape sequences.
    """

    def __init__(self, command: Sequence[str], timeout_s: float = 60) -> None:
        self._timeout_s = timeout_s
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(theirs)
        self.text = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        """Press keys; `\\x03` is Ctrl-C, `\\x04` Ctrl-D."""
        os.write(self._ours, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Wait until text after the last match fits the pattern; gives the text up to its end."""
        end_s = time.monotonic() + self._timeout_s
        while (seen := self._take(pattern)) is None:
            assert time.monotonic() < end_s, f"no {pattern!r} in {self.text!r}"
            self._read()
        return seen

    def press_until(self, keys: str, pattern: str) -> str:
        """Press keys, every second again, until the pattern is seen.

        For Ctrl-C at a prompt: Python notes a signal that comes between the prompt and the
        system call that waits for a key, but acts on it only after the next key.
        """
        end_s = time.monotonic() + self._timeout_s
        press_s = 0.0
        while (seen := self._take(pattern)) is None:
            assert time.monotonic() < end_s, f"no {pattern!r} in {self.text!r}"
            if time.monotonic() >= press_s:
                self.type(keys)
                press_s = time.monotonic() + 1.0
            self._read()
        return seen

    def _take(self, pattern: str) -> str | None:
        match = re.search(pattern, self.text)
        if match is None:
            return None
        seen, self.text = self.text[: match.end()], self.text[match.end() :]
        return seen

    def wait_for_end(self) -> int:
        """Wait until the program ends; its exit code."""
        end_s = time.monotonic() + self._timeout_s
        while self._process.poll() is None:
            assert time.monotonic() < end_s, f"still running; shown: {self.text!r}"
            self._read()
        return self._process.returncode

    def _read(self) -> None:
        readable, _, _ = select.select([self._ours], [], [], 0.1)
        if readable:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the program closed its side
                return
            self.text += _ESCAPES.sub("", data.decode(errors="replace"))
