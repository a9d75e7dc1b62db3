"""A Ray cluster with ports and files of its own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.directories import free_port

START_S = 60.0
Popen = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def ray_head(num_cpus: int, *args: str, popen: Popen = subprocess.Popen) -> Iterator[str]:
    """A running head; gives its address. It ends with all its processes."""
    port = free_port()
    head = ("--head", f"--port={port}", "--include-dashboard=false", *args)
    with ray_machine(num_cpus, *head, popen=popen) as host:
        yield f"{host}:{port}"


@contextmanager
def ray_machine(num_cpus: int, *args: str, popen: Popen = subprocess.Popen) -> Iterator[str]:
    """A machine of a cluster, by `ray start` with further options; gives its host."""
    folder = tempfile.mkdtemp(prefix="inlay-ray-", dir="/tmp")  # paths of sockets have to be short
    machine = popen(
        [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *args,
            f"--temp-dir={folder}", f"--num-cpus={num_cpus}", "--num-gpus=0",
            "--disable-usage-stats", "--include-log-monitor=false",
            f"--object-store-memory={80 * 2**20}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )  # fmt: skip
    try:
        yield _wait_started(machine)
    finally:
        machine.send_signal(signal.SIGTERM)
        try:
            machine.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(machine.pid, signal.SIGKILL)
            machine.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_started(machine: "subprocess.Popen[Any]") -> str:
    """Wait until it serves; its host."""
    assert machine.stdout is not None
    deadline_s = time.monotonic() + START_S
    lines = []
    host = "127.0.0.1"
    for line in machine.stdout:
        lines.append(line)
        if "Local node IP:" in line:
            host = line.rpartition(":")[2].strip()
        if "Ray runtime started" in line:
            return host
        assert time.monotonic() < deadline_s, "".join(lines)
    raise AssertionError("Ray does not start:\n" + "".join(lines))
