"""Limits and other systems in processes of their own, asked call by call.

While others measure, such a process and its children are stopped: a progress thread that spins
would take a core from them.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import peers
from benchmarks.case import CaseError
from benchmarks.transfer.calls import ARENA_BYTES
from benchmarks.transfer.told import Told

SETTLE_S = 0.002  # after they go on, until threads that spin are there again

VERSION = "import importlib.metadata as m; print(m.version('{}'))"


class Driver(Told):
    """A process that answers `WHAT BLOCK_BYTES THREADS CALLS` with two times in seconds.

    Args:
        command: it.
        environment: laid over this process's.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        environment = {**os.environ, **(environment or {})}
        super().__init__(command, env=environment, start_new_session=True)
        os.killpg(self.process.pid, signal.SIGSTOP)

    def ask(self, what: str, block_bytes: int, threads: int, calls: int) -> tuple[float, float]:
        """Total and median seconds of `calls` calls in each of `threads` threads."""
        os.killpg(self.process.pid, signal.SIGCONT)
        time.sleep(SETTLE_S)
        total_s, p50_s = self.tell(f"{what} {block_bytes} {threads} {calls}").split()
        os.killpg(self.process.pid, signal.SIGSTOP)
        return float(total_s), float(p50_s)

    def close(self) -> None:
        """Kill it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        super().close()


@contextlib.contextmanager
def limits() -> Iterator[Driver]:
    """What the machine allows: `limit_driver.cpp`, compiled for this processor."""
    with tempfile.TemporaryDirectory() as folder:
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
            raise CaseError(f"{source.name} does not compile: {done.stderr[-500:]}")
        with Driver([str(program), str(ARENA_BYTES)]) as driver:
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
                except CaseError as error:
                    print(f"peer left out: {error}", file=sys.stderr)
                    continue
                found[f"{name} {version}{suffix}"] = stack.enter_context(driver)
        yield found
