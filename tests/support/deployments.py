"""`inlay up` in a process of its own, as a user starts it, and the commands that ask it.

with running_deployment(folder, TEXT) as deployment:
    deployment.command("scale", "all=3")
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inlay.cluster.control import ProcessStatus, Status, StatusRequest
from inlay.cluster.control_client import ask
from inlay.cluster.deployment_directory import find_running

START_S = 120.0
_SERVES = re.compile(r" serves .* at (http://\S+), up")


def inlay(folder: Path, *args: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its cache directory is in the folder."""
    return subprocess.run(
        [sys.executable, "-m", "inlay", *args],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(folder),
    )


def environment(folder: Path) -> dict[str, str]:
    """Of a process whose deployments are in a folder, and whose tables are not cut."""
    return {**os.environ, "INLAY_CACHE_DIR": str(folder / "cache"), "COLUMNS": "200"}


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(found: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The first value that is true."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < deadline_s, f"{what}: not in {timeout_s:g} s"
        time.sleep(0.05)
    return value


class RunningDeployment:
    """`inlay up FILE`, what it printed, and shortcuts to ask it.

    Args:
        popen: starts the process; another one may start it in a network namespace.

    Attributes:
        url: of its dispatchers; empty until all is ready.
    """

    def __init__(
        self, folder: Path, text: str, popen: Callable[..., Any] = subprocess.Popen
    ) -> None:
        self.folder = folder
        self.file = folder / "deployment.toml"
        self.file.write_text(text)
        self.url = ""
        self._lines: list[str] = []
        self._known = threading.Event()
        self._process = popen(
            [sys.executable, "-m", "inlay", "up", str(self.file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment(folder), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """Everything it printed so far."""
        return "".join(self._lines)

    def wait_ready(self) -> "RunningDeployment":
        self._known.wait(START_S)
        assert self.url, f"the deployment is not ready:\n{self.output}\n{self.logs()}"
        return self

    def command(self, *args: str, timeout_s: float = 120.0) -> str:
        """Output of a command that succeeds."""
        done = inlay(self.folder, *args, timeout_s=timeout_s)
        assert done.returncode == 0, f"{args}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def processes(self) -> dict[str, ProcessStatus]:
        """How each is now, by name; asked as `inlay status` asks, without a process for it."""
        control = find_running(self.folder / "cache" / "deployments", None).control
        status = ask(control, StatusRequest(), timeout_s=10)
        assert isinstance(status, Status)
        return {one.name: one for one in status.processes}

    def logs(self) -> str:
        """The ends of all logs."""
        logs = sorted(self.folder.glob("cache/deployments/*/logs/*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for its end; its exit code."""
        code = self._process.wait(timeout_s)
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def end(self) -> None:
        """Stop it, however it is."""
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if found := _SERVES.search(line):
                self.url = found[1]
            if "Stop with Ctrl+C" in line:
                self._known.set()
        self._known.set()


@contextmanager
def running_deployment(folder: Path, text: str) -> Iterator[RunningDeployment]:
    """A deployment that is ready; stopped at the end."""
    deployment = RunningDeployment(folder, text)
    try:
        yield deployment.wait_ready()
    finally:
        deployment.end()
