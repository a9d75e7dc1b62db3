"""Limits and other systems in processes of their own, asked call by call.

While others measure, such a process and its children are stopped: a progress thread that spins
would take a core from them. Those that would be given up by others of theirs meanwhile stay as they
are, if they are idle when nobody asks.
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

ONE_MODE: Mapping[str, Sequence[str]] = {"": ()}
VERSION = "import importlib.metadata as m; print(m.version('{}'))"


class Driver(Told):
    """A process that answers `WHAT BLOCK_BYTES THREADS CALLS` with two times in seconds.

    Args:
        command: it.
        environment: laid over this process's.
        stopped: while nobody asks.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stopped: bool = True,
    ) -> None:
        environment = {**os.environ, **(environment or {})}
        super().__init__(command, env=environment, start_new_session=True)
        self._stopped = stopped
        self._signal(signal.SIGSTOP)

    def ask(self, what: str, block_bytes: int, threads: int, calls: int) -> tuple[float, float]:
        """Total and median seconds of `calls` calls in each of `threads` threads."""
        self._signal(signal.SIGCONT)
        total_s, p50_s = self.tell(f"{what} {block_bytes} {threads} {calls}").split()
        self._signal(signal.SIGSTOP)
        return float(total_s), float(p50_s)

    def _signal(self, number: signal.Signals) -> None:
        if self._stopped:
            os.killpg(self.process.pid, number)
            if number == signal.SIGCONT:
                time.sleep(SETTLE_S)

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
    with started(
        folder,
        "mooncake",
        "mooncake-transfer-engine-non-cuda",
        "benchmarks.transfer.peer_mooncake",
    ) as found:
        yield found


@contextlib.contextmanager
def nixl(folder: Path | None, ucx_tls: str | None = None) -> Iterator[dict[str, Driver]]:
    """Two nixl agents, with a progress thread and without, under their labels.

    Args:
        ucx_tls: the transports that UCX may use; None: as it likes.
    """
    modes = {"": ["threaded"], " without progress thread": ["unthreaded"]}
    environment = {"UCX_TLS": ucx_tls} if ucx_tls else {}
    with started(
        folder,
        "nixl",
        "nixl",
        "benchmarks.transfer.peer_nixl",
        modes=modes,
        environment=environment,
    ) as found:
        yield found


@contextlib.contextmanager
def started(
    folder: Path | None,
    name: str,
    package: str,
    module: str,
    *,
    modes: Mapping[str, Sequence[str]] = ONE_MODE,
    environment: Mapping[str, str] | None = None,
    stopped: bool = True,
) -> Iterator[dict[str, Driver]]:
    """Another system's drivers under their labels; empty where it is not there or does not start.

    Args:
        folder: `--peers`.
        name: of its environment.
        package: whose version is in the label.
        module: of this repository, which its Python runs.
        modes: arguments of the module by what they add to the label.
        environment, stopped: as of `Driver`.
    """
    home = peers.environment(folder, name)
    found: dict[str, Driver] = {}
    with contextlib.ExitStack() as stack:
        if home is not None:
            python = str(home / "bin" / "python")
            version = subprocess.run(
                [python, "-c", VERSION.format(package)], capture_output=True, text=True, check=False
            ).stdout.strip()
            for suffix, arguments in modes.items():
                try:
                    driver = Driver([python, "-m", module, *arguments], environment, stopped)
                except CaseError as error:
                    print(f"peer left out: {error}", file=sys.stderr)
                    continue
                found[f"{name} {version}{suffix}"] = stack.enter_context(driver)
        yield found
