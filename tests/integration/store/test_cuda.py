"""Values on devices, by a stand-in for the CUDA driver, and by a real device where there is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inlay.store import Store
from tests.support.cuda import ROOT, build_standin, run_cases

CASES = "tests/integration/store/cuda_cases.py"


def test_standin(tmp_path: Path) -> None:
    run_cases(CASES, LD_LIBRARY_PATH=str(build_standin(tmp_path)))


@pytest.mark.gpu
def test_device() -> None:
    run_cases(CASES)


@pytest.mark.gpu
def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    with Store.embedded(memory="64MiB") as store:
        tensor = torch.arange(3_000_000, dtype=torch.float32, device="cuda").reshape(3, -1)
        torch.cuda.synchronize()
        store.put_many(["whole", "row"], [tensor, tensor[1]])
        back = torch.zeros_like(tensor)
        torch.cuda.synchronize()
        assert store.get_into_many(["whole", "row"], [back, tensor[2]]) == [12_000_000, 4_000_000]
        assert (back[:2] == tensor[:2]).all() and (tensor[2] == tensor[1]).all()


def test_without_cuda_it_is_an_error_that_says_so() -> None:
    code = """
import pytest
from inlay.core.errors import ArgumentError, TransportUnavailableError
from inlay.store import Store
from tests.support.cuda import DeviceTensor
with Store.embedded(memory="4MiB") as store:
    with pytest.raises(TransportUnavailableError, match="device memory needs CUDA"):
        store.put("key", DeviceTensor(4096, 100))
    with pytest.raises(ArgumentError, match="are not all memory that this process may read"):
        store.put("key", (8, 8))
    store.put("key", b"value")
"""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=environment,
    )
    assert run.returncode == 0, run.stdout + run.stderr
