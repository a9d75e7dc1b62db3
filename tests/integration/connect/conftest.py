"""A master that is started by Mooncake's flags, and clients of it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import ENVIRONMENTS
from benchmarks.serving.sglang import site_packages
from inlay.connect.mooncake import MooncakeDistributedStore
from tests.support.store import StoreProcess, close_all
from tests.support.tiny_models import make_tiny_model

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


@pytest.fixture(scope="session")
def vllm_environment() -> Path:
    """A Python environment with vLLM, which the checkout's own has not."""
    environment = ENVIRONMENTS / "vllm"
    if not environment.is_dir():
        pytest.skip(f"{environment} is missing")
    return environment


@pytest.fixture(scope="session")
def sglang_environments(vllm_environment: Path) -> Path:
    """The folder with an environment that has SGLang's server, and vLLM's, which runs it."""
    if site_packages(ENVIRONMENTS) is None:
        pytest.skip(f"{ENVIRONMENTS / 'sglang'} is missing, or lacks what SGLang's server imports")
    return ENVIRONMENTS


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small random model that vLLM serves on a CPU."""
    return make_tiny_model(
        tmp_path_factory.mktemp("models") / "tiny", "qwen3", dtype="bfloat16", hidden_size=256,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096,
    )  # fmt: skip


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
