"""Every test here needs the compiled extension; those that take `isa` run once per variant."""

from collections.abc import Iterator

import numpy as np
import pytest

from inlay import kernels

VARIANTS = [
    "scalar",
    "avx2",
    "avx2_vnni",
    "avx512",
    "avx512_vnni",
    "avx512_bf16",
    "amx",
    "amx_emulated",
]


@pytest.fixture(autouse=True)
def _needs_extension() -> None:
    if kernels.native_problem() is not None:
        pytest.skip(f"needs the extension: {kernels.native_problem()}")


@pytest.fixture(params=VARIANTS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test with one kernel variant."""
    if request.param not in kernels.available_isas():
        pytest.skip(f"this processor cannot run {request.param}")
    with kernels.force_isa(request.param):
        yield request.param


@pytest.fixture
def rng() -> np.random.Generator:
    """The same numbers on every run."""
    return np.random.default_rng(7)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores nodes and number of threads after the test."""
    before = kernels.num_threads()
    yield
    kernels.set_topology(None)
    kernels.set_num_threads(before)
