"""A Ray cluster of this machine alone, with ports and files of its own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

START_S = 60.0


@contextmanager
def ray_head(num_cpus: int) -> Iterator[str]:
    """A running head; gives its address. It ends with all its processes."""
    folder = tempfile.mkdtemp(prefix="inlay-ray-", dir="/tmp")  # paths of sockets have to be short
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    head = subprocess.Popen(
        [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
            f"--port={port}", f"--temp-dir={folder}", f"--num-cpus={num_cpus}", "--num-gpus=0",
            "--include-dashboard=false", "--include-log-monitor=false", "--disable-usage-stats",
            f"--object-store-memory={80 * 2**20}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )  # fmt: skip
    try:
        yield f"{_wait_started(head)}:{port}"
    finally:
        head.send_signal(signal.SIGTERM)
        try:
            head.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)
            head.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_started(head: "subprocess.Popen[str]") -> str:
    """Wait until it serves; its host."""
    assert head.stdout is not None
    deadline_s = time.monotonic() + START_S
    lines = []
    host = "127.0.0.1"
    for line in head.stdout:
        lines.append(line)
        if "Local node IP:" in line:
            host = line.rpartition(":")[2].strip()
        if "Ray runtime started" in line:
            return host
        assert time.monotonic() < deadline_s, "".join(lines)
    raise AssertionError("Ray does not start:\n" + "".join(lines))
