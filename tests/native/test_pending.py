"""Submitted work: order, waiting, errors, ownership, fork and exit."""

import mmap
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from inlay import kernels
from inlay.core.errors import ArgumentError, WaitTimeoutError
from tests.native.cases import floats

TOKENS, HIDDEN = 512, 512

Floats = npt.NDArray[np.float32]


class Layer:
    """A layer whose pass takes some milliseconds of one thread."""

    def __init__(self, rng: np.random.Generator) -> None:
        gate, up, down = (floats(rng, 2, HIDDEN, HIDDEN) for _ in range(3))
        self.experts = kernels.pack_experts(gate, up, down)
        self.x = floats(rng, TOKENS, HIDDEN)
        self.ids = (np.arange(TOKENS, dtype=np.int32) % 2).reshape(TOKENS, 1)
        self.routing = np.ones((TOKENS, 1), np.float32)

    def run(self, out: Floats, accumulate: bool = False) -> None:
        kernels.moe(self.x, self.experts, self.ids, self.routing, out, accumulate=accumulate)

    def submit(self, out: Floats, accumulate: bool = False) -> kernels.Pending:
        return kernels.submit_moe(
            self.x, self.experts, self.ids, self.routing, out, accumulate=accumulate
        )


@pytest.fixture
def layer(rng: np.random.Generator, threads: None) -> Layer:
    kernels.set_num_threads(1)
    return Layer(rng)


class Gate:
    """A step of a device in front of what is submitted, which waits until the device asks."""

    def __init__(self) -> None:
        self._step = kernels.HandOver(
            [kernels.pack_experts(*(np.ones((1, 8, 8), np.float32),) * 3)],
            np.ones((2, 1, 8), np.float32),
            np.zeros((2, 1, 1), np.int32),
            np.ones((2, 1, 1), np.float32),
            np.zeros((2, 1, 8), np.float32),
            np.zeros((1, 2), np.uint32),
        )

    def close(self) -> None:
        """What is submitted from now on waits."""
        self._step.begin(1, on_host_LE=np.ones((1, 1), np.bool_), timeout_s=600)

    def open(self) -> None:
        """It is done now."""
        self._step.ask(0)

    def remove(self) -> None:
        self._step.cancel()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A closed one."""
    made = Gate()
    made.close()
    yield made
    made.remove()


def test_same_bits_as_the_call(layer: Layer) -> None:
    expected, out = np.empty_like(layer.x), np.zeros_like(layer.x)
    layer.run(expected)
    pending = layer.submit(out)
    pending.wait()
    assert pending.done
    np.testing.assert_array_equal(out, expected)
    pending.wait(0)


def test_in_the_order_of_submission(layer: Layer) -> None:
    expected, out = np.empty_like(layer.x), np.zeros_like(layer.x)
    for begin in (False, True, True):
        layer.run(expected, accumulate=begin)
    pendings = [layer.submit(out, accumulate=begin) for begin in (True, False, True, True)]
    pendings[-1].wait()
    assert all(pending.done for pending in pendings)
    np.testing.assert_array_equal(out, expected)


def test_beside_a_caller(layer: Layer) -> None:
    kernels.set_num_threads(3)
    expected = np.empty_like(layer.x)
    layer.run(expected)
    outs = [np.zeros_like(layer.x) for _ in range(10)]
    pendings = [layer.submit(out) for out in outs]
    mine = np.empty_like(layer.x)
    for pending in pendings:
        layer.run(mine)
        np.testing.assert_array_equal(mine, expected)
        pending.wait(60)
    for out in outs:
        np.testing.assert_array_equal(out, expected)


def test_a_wait_that_is_too_short(layer: Layer, gate: Gate) -> None:
    last = layer.submit(np.empty_like(layer.x))
    for timeout_s in (0, 0.001):
        with pytest.raises(WaitTimeoutError, match=f"after {timeout_s} s"):
            last.wait(timeout_s)
    with pytest.raises(TimeoutError):
        last.wait(timeout_s=0)
    assert not last.done
    gate.open()
    last.wait(60)
    assert last.done


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), float("inf"), 1e7])
def test_timeouts_that_cannot_be(layer: Layer, timeout_s: float) -> None:
    with pytest.raises(ArgumentError, match="timeout_s"):
        layer.submit(np.empty_like(layer.x)).wait(timeout_s)


def test_arguments_are_checked_at_submission(layer: Layer) -> None:
    with pytest.raises(ArgumentError, match="out_TM"):
        layer.submit(np.empty((TOKENS, 1), np.float32))


def test_several_threads_wait(layer: Layer, gate: Gate) -> None:
    last = layer.submit(np.empty_like(layer.x))
    waiters = [threading.Thread(target=last.wait) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    gate.open()
    for waiter in waiters:
        waiter.join(60)
    assert last.done and not any(waiter.is_alive() for waiter in waiters)


def test_arrays_live_until_the_work_is_done(layer: Layer, gate: Gate) -> None:
    out = np.empty_like(layer.x)
    watch = weakref.ref(out)
    pending = layer.submit(out)
    del out
    assert watch() is not None
    gate.open()
    pending.wait()
    assert watch() is None


def test_arrays_of_a_dropped_pending(layer: Layer, gate: Gate) -> None:
    out = np.empty_like(layer.x)
    watch = weakref.ref(out)
    layer.submit(out)  # dropped at once
    del out
    last = layer.submit(np.empty_like(layer.x))
    assert watch() is not None
    gate.open()
    last.wait()
    layer.submit(np.empty_like(layer.x)).wait()
    assert watch() is None


def test_memory_lives_until_the_work_is_done(layer: Layer, gate: Gate) -> None:
    expected = np.empty_like(layer.x)
    layer.run(expected)
    x, out = torch.from_numpy(layer.x.copy()), torch.zeros(TOKENS, HIDDEN)
    result = out.detach().numpy()
    pending = kernels.submit_moe(x, layer.experts, layer.ids, layer.routing, out)
    x.data = out.data = torch.zeros(1)  # lets go of the storage of both
    gate.open()
    pending.wait()
    np.testing.assert_array_equal(result, expected)

    gate.close()
    memory = mmap.mmap(-1, layer.x.nbytes)
    memory[:] = layer.x.tobytes()
    view = memoryview(memory).cast("B").cast("f", layer.x.shape)
    pending = kernels.submit_moe(view, layer.experts, layer.ids, layer.routing, out := expected * 0)
    with pytest.raises(BufferError):
        view.release()
    gate.open()
    pending.wait()
    view.release()
    memory.close()
    np.testing.assert_array_equal(out, expected)


def test_what_picks_the_experts_is_copied(layer: Layer, gate: Gate) -> None:
    mask = np.array([True, False])
    expected, out = np.empty_like(layer.x), np.zeros_like(layer.x)
    arguments = (layer.x, layer.experts, layer.ids, layer.routing)
    kernels.moe(*arguments, expected, expert_mask_E=mask)
    pending = kernels.submit_moe(*arguments, out, expert_mask_E=mask)
    layer.ids[:], layer.routing[:], mask[:] = 2**30, np.nan, True
    gate.open()
    pending.wait()
    np.testing.assert_array_equal(out, expected)


class Interrupted(Exception):
    """Raised by the signal handler below."""


def test_signals_interrupt_a_wait(layer: Layer, gate: Gate) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    last = layer.submit(np.empty_like(layer.x))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            last.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not last.done
    gate.open()
    last.wait(60)


SCRIPT = """
import os, sys
import numpy as np
from inlay import kernels
from inlay.core.errors import ArgumentError
experts = kernels.pack_experts(*(np.ones((1, 1024, 1024), "f4"),) * 3)
x, out = np.ones((1024, 1024), "f4"), np.empty((1024, 1024), "f4")
ids, routing = np.zeros((1024, 1), "i4"), np.ones((1024, 1), "f4")
submit = lambda tokens: kernels.submit_moe(
    x[:tokens], experts, ids[:tokens], routing[:tokens], out[:tokens])
"""


def run_script(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + code], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "code",
    [
        "pendings = [submit(1024) for _ in range(1000)]",
        "for _ in range(1000): submit(1024)",
        "pendings = [submit(1024) for _ in range(1000)]; sys.exit('stop')",
    ],
    ids=["kept", "dropped", "exit"],
)
def test_exit_does_not_wait_for_pending_work(code: str) -> None:
    result = run_script(code)
    assert result.returncode == ("exit" in code)
    assert result.stderr == ("stop\n" if "exit" in code else "")


def test_a_forked_child_has_its_own_queue() -> None:
    code = """
pending = [submit(1024) for _ in range(20)][-1]
child = os.fork()
if child == 0:
    try:
        pending.wait()
    except ArgumentError as error:
        submit(1).wait()
        os._exit(7 if (out[0] == out[0, 0]).all() and "forked" in str(error) else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
pending.wait()
print(os.waitstatus_to_exitcode(status))
"""
    result = run_script(code)
    assert (result.stdout, result.stderr) == ("7\n", "")
