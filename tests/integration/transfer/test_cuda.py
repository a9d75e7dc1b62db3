"""Device memory, by a stand-in for the CUDA driver, and by a real device where there is one."""

from pathlib import Path

import numpy as np
import pytest

from inlay.core.errors import ArgumentError
from inlay.transfer import Access, TransferEngine
from tests.integration.transfer.target import TOKEN
from tests.support.cuda import build_standin, run_cases

CASES = "tests/integration/transfer/cuda_cases.py"


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_standin(tmp_path_factory.mktemp("cuda"))


def test_standin(standin: Path) -> None:
    run_cases(CASES, LD_LIBRARY_PATH=str(standin))


@pytest.mark.gpu
def test_device() -> None:
    run_cases(CASES)


@pytest.mark.gpu
def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    with TransferEngine(token=TOKEN) as engine:
        tensor = torch.arange(3_000_000, dtype=torch.float32, device="cuda").reshape(3, -1)
        torch.cuda.synchronize()
        segment = engine.register(tensor, name="tensor", remote=Access.WRITE)
        assert segment.location == f"cuda:{tensor.device.index}"
        memory = engine.allocate(len(segment))
        values = np.frombuffer(memory, np.float32)
        engine.read(memory, segment)
        assert (values == np.arange(3_000_000, dtype=np.float32)).all()
        values[:] = 7
        engine.write(memory[4:4000], segment[4:4000])
        assert (tensor[0, 1:1000] == 7).all() and tensor[0, 0] == 0 and tensor[0, 1000] == 1000
        with pytest.raises(ArgumentError, match="contiguous"):
            engine.register(tensor.T)
