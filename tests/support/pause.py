"""Stop another process, and wait until it has stopped."""

import os
import signal
import time
from pathlib import Path


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
