"""A fixture for folders of tests whose models are so small that one thread is fastest."""

import gc
from collections.abc import Iterator

import pytest
import torch

from inlay import kernels


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """For each file anew: tests between may set other numbers, and sums depend on them."""
    before = kernels.num_threads(), torch.get_num_threads()
    kernels.set_num_threads(1)
    torch.set_num_threads(1)
    # What the files before imported, as in `tests/conftest.py`.
    gc.collect()
    gc.freeze()
    yield
    kernels.set_num_threads(before[0])
    torch.set_num_threads(before[1])
