"""Starts `inlay serve`, or another server, as a user would and stops it; measures its memory."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Server:
    """A running server: its base URL and process."""

    url: str
    process: subprocess.Popen[bytes]

    def processes(self) -> list[psutil.Process]:
        """The server and what it started."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def rss_mib(self) -> float:
        """Memory of the server and its engine: private pages plus their share of shared ones."""
        return sum(process.memory_full_info().pss for process in self.processes()) / (1 << 20)

    def cpu_s(self) -> float:
        """Processor seconds so far, of the system too, with those of children that have ended."""
        return sum(sum(process.cpu_times()[:4]) for process in self.processes())

    def dirty_mib(self) -> float:
        """The same without clean page cache, which the kernel takes back when it needs it."""
        rollups = [Path(f"/proc/{process.pid}/smaps_rollup") for process in self.processes()]
        return sum(_kib(rollup.read_text(), "Pss_Dirty") for rollup in rollups) / (1 << 10)


def serve(
    *arguments: str, load: str = "whole", environment: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Server]:
    """Run `inlay serve ARGUMENTS` as `run_server` does; nothing loads beside what is measured."""
    setting = f"engine.load={load}"
    command = [sys.executable, "-m", "inlay", "serve", "--set", setting, *arguments]
    return run_server(command, environment)


@contextlib.contextmanager
def run_server(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server's command on a free port, given to it as `--port`, until the block ends.

    Yields at once, before the server is ready: see `wait_until_ready`. No process that the server
    started outlives the block.

    Args:
        environment: variables, beside those of this process.

    Raises:
        RuntimeError: the server had ended when the block did; with the end of its log.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env={**os.environ, **(environment or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        server = Server(f"http://127.0.0.1:{port}", process)
        try:
            yield server
        finally:
            if process.poll() is None:
                _stop(server)
            else:
                log.seek(0)
                raise RuntimeError(f"{' '.join(command[:4])} ended: {log.read().decode()[-2000:]}")


def wait_until_ready(
    server: Server, timeout_s: float = START_TIMEOUT_S, path: str = "/health"
) -> None:
    """Return when `path` answers 200.

    Raises:
        RuntimeError: the process ended, or `timeout_s` passed.
    """
    deadline = time.monotonic() + timeout_s
    # One client for all attempts: making one costs as much processor time as a server's answer.
    with httpx.Client() as client:
        while time.monotonic() < deadline and server.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{server.url}{path}").status_code == 200:
                    return
            time.sleep(0.02)
    raise RuntimeError(f"{server.url} did not become ready within {timeout_s:g} s")


def model_arguments(model: str, folder: Path) -> list[str]:
    """Command line words that name a model: none for the demo model, else its directory."""
    return [] if model == "demo" else [str(folder / model)]


def _stop(server: Server) -> None:
    started = server.processes()
    server.process.terminate()
    _, left = psutil.wait_procs(started, STOP_TIMEOUT_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    server.process.wait()


def _kib(text: str, name: str) -> int:
    """The value of a line such as `Pss_Dirty:   123 kB`."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])


def gauge(server: Server, name: str) -> float:
    """Sum of a metric; `name` may have a label, `name{label="value"`."""
    name, _, label = name.partition("{")
    return sum(
        float(line.split()[-1])
        for line in httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
        if line.startswith(f"{name}{{") and label in line
    )
