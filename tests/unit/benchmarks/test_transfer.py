"""What the transfer cases stand on: walks through memory, drivers, the shape of KV pages."""

import os
import sys
import threading

import numpy as np
import pytest

from benchmarks.case import CaseError, load_declaration
from benchmarks.transfer import drivers, kv_shaped
from benchmarks.transfer.calls import ARENA_BYTES, Walk, timed
from benchmarks.transfer.drivers import Driver


def test_threads_walk_through_their_own_parts() -> None:
    walk, block = Walk(), 48 << 20
    seen = [walk.offset(thread, 2, block) for _ in range(3) for thread in (0, 1)]
    half = ARENA_BYTES // 2
    assert seen == [0, half, block, half + block, 0, half]


def test_timed_calls_run_at_the_same_time_and_errors_come_out() -> None:
    both = threading.Barrier(2)
    total_s, p50_s = timed(lambda thread: lambda offset: both.wait(10), Walk(), 4096, 2, 3)
    assert 0 < p50_s <= total_s

    def broken(thread: int) -> None:
        raise OSError(f"in {thread}")

    with pytest.raises(OSError, match="in "):
        timed(lambda thread: lambda offset: broken(thread), Walk(), 4096, 2, 3)


@pytest.mark.parametrize("what", ["copy", "read", "write"])
def test_limits_answer(what: str) -> None:
    with drivers.limits() as limit:
        for threads in (1, 2):
            total_s, p50_s = limit.ask(what, 1 << 20, threads, 5)
            # Nothing moves 10 TB in a second.
            assert 1e-7 < p50_s < total_s < 10


def test_a_driver_is_stopped_between_questions() -> None:
    spin = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('1 2', flush=True)"
    driver = Driver([sys.executable, "-c", spin])
    try:
        assert driver.ask("read", 1, 1, 1) == (1.0, 2.0)
        pid = driver.process.pid
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
    finally:
        driver.close()


def test_a_driver_that_ends_says_why() -> None:
    with pytest.raises(CaseError, match="no such engine"):
        Driver([sys.executable, "-c", "import sys; sys.exit('no such engine')"])


def test_kv_pieces_fill_no_place_twice() -> None:
    shape = load_declaration("transfer/kv_shaped")["workload"]
    sizes = kv_shaped.lengths(shape)
    assert len(sizes) == 61 * 32 * 2 and sizes.sum() == 61 * 32 * (144 << 10)
    starts = kv_shaped.offsets(shape, np.random.default_rng(0))
    order = np.argsort(starts)
    assert starts.min() >= 0
    assert (starts[order][1:] >= starts[order][:-1] + sizes[order][:-1]).all()
    assert (starts + sizes).max() <= kv_shaped.pool_bytes(shape)
