"""Tiny models are fastest on one thread."""

from collections.abc import Iterator

import pytest
import torch

from inlay import kernels


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = kernels.num_threads(), torch.get_num_threads()
    kernels.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    kernels.set_num_threads(before[0])
    torch.set_num_threads(before[1])
