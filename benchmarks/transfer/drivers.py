"""Limits and other systems in processes of their own, asked call by call.

While others measure, such a process and its children are stopped: a progress thread that spins
would take a core from them.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import peers
from benchmarks.case import CaseError
from benchmarks.machine import ROOT
from benchmarks.transfer.calls import ARENA_BYTES

START_S = 60
ANSWER_S = 60
SETTLE_S = 0.002  # after they go on, until threads that spin are there again

VERSION = "import importlib.metadata as m; print(m.version('{}'))"


class DriverError(CaseError):
    """A driver's process cannot start or ended; the message has the end of what it printed."""


class Driver:
    """A process that answers `WHAT BLOCK_BYTES THREADS CALLS` with two times in seconds.

    Args:
        command: it; its first line is `ready` if `says_ready`.
        environment: laid over this process's.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        says_ready: bool = True,
    ) -> None:
        self._name = " ".join(command[-2:])
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        if says_ready:
            try:
                self._line(START_S)
            except DriverError:
                self.close()
                raise
        os.killpg(self._process.pid, signal.SIGSTOP)

    def ask(self, what: str, block_bytes: int, threads: int, calls: int) -> tuple[float, float]:
        """Total and median seconds of `calls` calls in each of `threads` threads."""
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        time.sleep(SETTLE_S)
        self._process.stdin.write(f"{what} {block_bytes} {threads} {calls}\n".encode())
        self._process.stdin.flush()
        total_s, p50_s = self._line(ANSWER_S).split()
        os.killpg(self._process.pid, signal.SIGSTOP)
        return float(total_s), float(p50_s)

    def close(self) -> None:
        """End the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()

    def _line(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if ready else b""
        if line:
            return line.decode()
        self._log.seek(0)
        tail = self._log.read().decode(errors="replace")[-500:]
        raise DriverError(f"{self._name} {'ended' if ready else 'does not answer'}: {tail}")


@contextlib.contextmanager
def limits() -> Iterator[Driver]:
    """What the machine allows: `limit_driver.cpp`, compiled for this processor."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        program = Path(folder) / "limit_driver"
        source = Path(__file__).with_name("limit_driver.cpp")
        flags = ["-O3", "-march=native", "-std=c++20", "-pthread"]
        compiler = os.environ.get("CXX", "c++")
        done = subprocess.run(
            [compiler, *flags, str(source), "-o", str(program)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DriverError(f"{source.name} does not compile: {done.stderr[-500:]}")
        driver = Driver([str(program), str(ARENA_BYTES)], says_ready=False)
        stack.callback(driver.close)
        yield driver


@contextlib.contextmanager
def mooncake(folder: Path | None) -> Iterator[dict[str, Driver]]:
    """Mooncake's engine over tcp under its label; empty if it is not there or does not start."""
    with _started(folder, "mooncake", "mooncake-transfer-engine-non-cuda", {"": []}, {}) as found:
        yield found


@contextlib.contextmanager
def nixl(folder: Path | None, ucx_tls: str | None = None) -> Iterator[dict[str, Driver]]:
    """Two nixl agents, with a progress thread and without, under their labels.

    Args:
        ucx_tls: the transports that UCX may use; None: as it likes.
    """
    modes = {"": ["threaded"], " without progress thread": ["unthreaded"]}
    environment = {"UCX_TLS": ucx_tls} if ucx_tls else {}
    with _started(folder, "nixl", "nixl", modes, environment) as found:
        yield found


@contextlib.contextmanager
def _started(
    folder: Path | None,
    name: str,
    package: str,
    modes: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
) -> Iterator[dict[str, Driver]]:
    home = peers.environment(folder, name)
    found: dict[str, Driver] = {}
    with contextlib.ExitStack() as stack:
        if home is not None:
            python = str(home / "bin" / "python")
            version = subprocess.run(
                [python, "-c", VERSION.format(package)], capture_output=True, text=True, check=False
            ).stdout.strip()
            module = f"benchmarks.transfer.peer_{name}"
            for suffix, arguments in modes.items():
                try:
                    driver = Driver([python, "-m", module, *arguments], environment)
                except DriverError as error:
                    print(f"peer left out: {error}", file=sys.stderr)
                    continue
                stack.callback(driver.close)
                found[f"{name} {version}{suffix}"] = driver
        yield found
