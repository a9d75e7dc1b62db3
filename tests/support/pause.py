"""Stop another process, or a thread of it, and wait until it has stopped."""

import contextlib
import ctypes
import os
import signal
import threading
import time
from concurrent.futures import Future
from pathlib import Path

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def pause(pid: int, timeout_s: float = 10.0) -> None:
    """Send SIGSTOP and return when all its threads have stopped.

    They stop one after the other: until then one of them may still answer.
    """
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + timeout_s
    while any(_state(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < end, f"process {pid} does not stop"
        time.sleep(0.001)


def go_on(pid: int) -> None:
    """Let it run again."""
    os.kill(pid, signal.SIGCONT)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class StoppedThread:
    """The first thread of a process stands still while the others go on: by ptrace, from a thread
    that lives until `close`.

    Raises:
        OSError: this system does not let us.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._closing = threading.Event()
        self._begun: Future[None] = Future()
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self._thread.start()
        self._begun.result(10)

    def close(self) -> None:
        """Let it go on, if it is still there."""
        self._closing.set()
        self._thread.join(10)

    def _hold(self) -> None:
        try:
            _ptrace(_SEIZE, self._pid)
            _ptrace(_INTERRUPT, self._pid)
            os.waitpid(self._pid, _WALL)
        except OSError as error:
            self._begun.set_exception(error)
            return
        self._begun.set_result(None)
        self._closing.wait()
        with contextlib.suppress(ProcessLookupError):
            _ptrace(_DETACH, self._pid)


def _ptrace(request: int, pid: int) -> None:
    nothing = ctypes.c_void_p(0)
    if _libc.ptrace(request, pid, nothing, nothing) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
