"""The GPU kernels run compiled where there is a GPU, else in Triton's interpreter.

Which of both is set in tests/conftest.py.
"""

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("needs torch and triton", allow_module_level=True)

import torch


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
