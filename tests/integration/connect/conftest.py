"""A master that is started by Mooncake's flags, and clients of it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inlay.connect.mooncake import MooncakeDistributedStore
from tests.support.store import StoreProcess, close_all

PROGRAM = "inlay.connect.mooncake"
Setup = Callable[..., MooncakeDistributedStore]
SCRIPT_S = 120


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    folder = tmp_path_factory.mktemp("master")
    flags = ["--port=0", "--metrics_port=0", "--default_kv_lease_ttl=300", "--rpc_thread_num=4"]
    process = StoreProcess(folder, *flags, module=(f"{PROGRAM}.master",))
    try:
        yield process.wait_for(r"master at (127.0.0.1:\d+)")[1]
    finally:
        process.close()


@pytest.fixture
def setup(master: str) -> Iterator[Setup]:
    """Stores that are set up; they are closed, and empty, when the test ends."""
    opened: list[MooncakeDistributedStore] = []

    def make(segment: int = 64 << 20, hostname: str = "localhost") -> MooncakeDistributedStore:
        store = MooncakeDistributedStore()
        assert store.setup(hostname, "P2PHANDSHAKE", segment, 0, "tcp", "", master) == 0
        opened.append(store)
        return store

    yield make
    if opened:
        opened[0].remove_all(force=True)
    for store in opened:
        store.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., StoreProcess]]:
    """Start a program of `inlay.connect.mooncake`."""
    started: list[StoreProcess] = []

    def begin(program: str, *args: str) -> StoreProcess:
        process = StoreProcess(tmp_path, *args, module=(f"{PROGRAM}.{program}",))
        started.append(process)
        return process

    yield begin
    close_all(started)


def run_script(script: Path, *args: str, python: str = sys.executable, real: bool = False) -> Any:
    """What a script that imports `mooncake` prints: JSON."""
    words = [] if real else ["-m", PROGRAM]
    done = subprocess.run(
        [python, *words, str(script), *args],
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        env={**os.environ, "GLOG_minloglevel": "3", "MC_LOG_LEVEL": "ERROR"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)
