"""Every kernel compiles for GPUs of several generations, none of which has to be there."""

import os
import subprocess
import sys

import pytest

from tests.support.tree import ROOT

# What a block may have on the smallest of them (compute capability 8.6, 8.9 and 12.0).
SHARED_BYTES = 99 << 10
HAVE_PRODUCTS = {"_product", "_expert_product", "_into_rank", "_out_of_rank", "_attend"}


@pytest.mark.parametrize("capability", [90, pytest.param(80, marks=pytest.mark.slow)])
def test_kernels_compile(capability, tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.unit.models.gpu.compile_only", str(capability)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=170, env=environment, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr
    compiled = [line.split() for line in result.stdout.splitlines()]
    assert {name for name, _, products in compiled if int(products)} == HAVE_PRODUCTS
    for name, shared_bytes, _ in compiled:
        assert int(shared_bytes) <= SHARED_BYTES, name
