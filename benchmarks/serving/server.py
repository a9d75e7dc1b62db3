"""Starts `inlay serve` as a user would and stops it; measures its start and its memory."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Server:
    """A running server: its base URL and process."""

    url: str
    process: subprocess.Popen[bytes]

    def rss_mib(self) -> float:
        """Memory of the server and its engine: private pages plus their share of shared ones."""
        root = psutil.Process(self.process.pid)
        return sum(
            process.memory_full_info().pss for process in [root, *root.children(recursive=True)]
        ) / (1 << 20)


@contextlib.contextmanager
def serve(*arguments: str) -> Iterator[Server]:
    """Run `inlay serve ARGUMENTS` on a free port until the block ends.

    Yields at once, before the server is ready: see `wait_until_ready`.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "inlay", "serve", *arguments, "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        server = Server(f"http://127.0.0.1:{port}", process)
        try:
            yield server
            if process.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"inlay serve ended: {log.read().decode()[-2000:]}")
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until_ready(server: Server) -> None:
    """Return when `/health` answers 200.

    Raises:
        RuntimeError: the process ended, or `START_TIMEOUT_S` passed.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{server.url}/health").status_code == 200:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{server.url} did not become ready within {START_TIMEOUT_S:g} s")


def model_arguments(model: str, folder: Path) -> list[str]:
    """Command line words that name a model: none for the demo model, else its directory."""
    return [] if model == "demo" else [str(folder / model)]
