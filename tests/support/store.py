"""Masters and nodes in processes of their own, started as a user starts them."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.pause import go_on, pause

START_S = 30.0


class StoreProcess:
    """`inlay store ...`, or another module, and what it printed.

    Args:
        folder: its cache directory is in there.
        module: with the first of its arguments.
    """

    def __init__(
        self, folder: Path, *args: str, module: Sequence[str] = ("inlay", "store")
    ) -> None:
        self.args = args
        self._process = subprocess.Popen(
            [sys.executable, "-m", *module, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "INLAY_CACHE_DIR": str(folder / "cache")},
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def log(self) -> str:
        """Everything it printed so far."""
        return "".join(self._lines)

    def wait_for(self, pattern: str, timeout_s: float = START_S) -> re.Match[str]:
        """Wait until it has printed this."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while (found := re.search(pattern, self.log)) is None:
                left = end - time.monotonic()
                running = self._process.poll() is None or self._reader.is_alive()
                if left <= 0 or not running:
                    raise AssertionError(f"{self.args} did not say {pattern!r}:\n{self.log}")
                self._changed.wait(min(left, 0.5))
        return found

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def pause(self) -> None:
        """Stop it until `go_on`."""
        pause(self.pid)

    def go_on(self) -> None:
        """Let it run again."""
        go_on(self.pid)

    def kill(self) -> None:
        """kill -9, and wait."""
        self._process.kill()
        self._finish()

    def stop(self, timeout_s: float = 20.0) -> int:
        """Ask it to stop; returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 20.0) -> int:
        """Wait for its end; returns its exit code."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.args} did not end:\n{self.log}") from None
        return self._finish()

    def close(self) -> None:
        """End it, however it is."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self.kill()
        self._finish()

    def _finish(self) -> int:
        code = self._process.wait()
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


def inlay(
    *args: str, stdin: bytes = b"", timeout_s: float = 60.0
) -> "subprocess.CompletedProcess[bytes]":
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "inlay", *args],
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


def close_all(processes: Sequence[StoreProcess]) -> None:
    """End them, the last first."""
    for process in reversed(processes):
        process.close()


def listens(port: int, process: "subprocess.Popen[bytes]", timeout_s: float = START_S) -> None:
    """Return when somebody listens at this port of loopback."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            assert time.monotonic() < end and process.poll() is None, f"nobody listens at {port}"
            time.sleep(0.02)
