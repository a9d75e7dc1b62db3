"""Measured limits: plausible, in the stated units, and never below what a kernel reaches."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from inlay import kernels
from inlay.core.errors import ArgumentError


def test_memory_is_read_slower_than_registers_work(threads: None) -> None:
    probe = kernels.MemoryProbe()
    assert probe.nbytes >= 512 * 2**20
    rate = probe.read_gbs()
    assert 0.1 < rate < 10_000
    assert kernels.measure_peak("fp32") * 1e3 > rate / 4  # one multiply-add per value would do


def test_read_rate_is_in_gigabytes_per_second(threads: None) -> None:
    probe = kernels.MemoryProbe(1)
    start = time.perf_counter()
    rate = probe.read_gbs()
    seconds = time.perf_counter() - start
    # The buffer is read twice, and the better rate counts.
    assert rate >= 2 * probe.nbytes / seconds / 1e9 * 0.99


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_peaks_are_those_of_a_processor(kind: str) -> None:
    assert 1e-4 < kernels.measure_peak(kind, threads=1) < 100


@pytest.mark.slow  # ratios of times, which other load on the machine shifts; so are the next two
@pytest.mark.skipif(
    "avx512_vnni" not in kernels.cpu_features() or "amx" in kernels.available_isas(),
    reason="needs AVX-512 VNNI, and no AMX",
)
def test_the_int8_instruction_does_four_times_the_work() -> None:
    ratios = [kernels.measure_peak("int8", 1) / kernels.measure_peak("fp32", 1) for _ in range(20)]
    assert 3 < np.median(ratios) < 5


@pytest.mark.slow
@pytest.mark.skipif("amx" not in kernels.available_isas(), reason="needs AMX")
def test_tiles_do_many_times_the_work() -> None:
    peaks = {
        kind: max(kernels.measure_peak(kind, 1) for _ in range(20))
        for kind in ("fp32", "bf16", "int8")
    }
    assert 1.7 < peaks["int8"] / peaks["bf16"] < 2.3
    assert 6 < peaks["bf16"] / peaks["fp32"] < 40


@pytest.mark.slow
def test_no_product_is_faster_than_the_peak(threads: None) -> None:
    kernels.set_num_threads(1)
    x, out = np.ones((64, 512), np.float32), np.empty((64, 512), np.float32)
    weight = kernels.pack_linear(np.ones((512, 512), np.float32))
    seconds = []
    for _ in range(50):
        start = time.perf_counter()
        kernels.linear(x, weight, out)
        seconds.append(time.perf_counter() - start)
    peak = max(kernels.measure_peak("fp32") for _ in range(5))
    assert 2 * out.size * 512 / min(seconds) / 1e12 < 1.1 * peak


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="kind.*'fp16'"):
        kernels.measure_peak("fp16")
    for bad in (0, -1, 2000):
        with pytest.raises(ArgumentError, match=f"threads.*{bad}"):
            kernels.measure_peak("fp32", bad)
        with pytest.raises(ArgumentError, match=f"threads.*{bad}"):
            kernels.measure_read_gbs(bad)


def test_without_the_extension_there_are_no_limits() -> None:
    code = "import inlay.kernels as k; k.measure_peak('fp32')"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "INLAY_NATIVE": "0"},
    )
    assert "ArgumentError: limits: need the compiled extension" in result.stderr
