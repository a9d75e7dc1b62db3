"""Device memory, by a stand-in for the CUDA driver, and by a real device where there is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.transfer.conftest import ROOT
from tests.support.cuda import build_standin

CASES = "tests/integration/transfer/cuda_cases.py"


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_standin(tmp_path_factory.mktemp("cuda"))


def run_cases(**environment: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", CASES],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        env={**os.environ, **environment},
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_standin(standin: Path) -> None:
    run_cases(LD_LIBRARY_PATH=str(standin))


@pytest.mark.gpu
def test_device() -> None:
    run_cases()
