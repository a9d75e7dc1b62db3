"""A server for the time of a benchmark: `inlay serve` in a process of its own."""

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that answers `/health`.

    Attributes:
        url: where it listens, without a slash at the end.
        pid: its process; the engine may run in a child (`machine.memory_mib` counts both).
        start_s: from the start of the process until it was healthy.
    """

    url: str
    pid: int
    start_s: float


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running_server(*arguments: str, timeout_s: float = 120) -> Iterator[Server]:
    """Run `inlay serve ARGUMENTS` on a free port and stop it in the end.

    Raises:
        RuntimeError: it ended or was not healthy in time; the message has the end of its output.
    """
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(Path(sys.executable).with_name("inlay")), "serve", *arguments]
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while not _healthy(url):
                late = time.monotonic() - start > timeout_s
                if late or process.poll() is not None:
                    output.seek(0)
                    said = output.read()[-4000:].decode(errors="replace")
                    what = f"not healthy in {timeout_s} s" if late else f"ended: {process.poll()}"
                    raise RuntimeError(f"{' '.join(command)} {what}\n{said}")
                time.sleep(0.05)
            yield Server(url=url, pid=process.pid, start_s=time.monotonic() - start)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
