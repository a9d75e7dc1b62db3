"""The GPU kernels run compiled where there is a GPU, else in Triton's interpreter."""

import importlib.util
import os

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("needs torch and triton", allow_module_level=True)

import torch

if not torch.cuda.is_available():
    # Read when Triton is first imported, and only then.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
