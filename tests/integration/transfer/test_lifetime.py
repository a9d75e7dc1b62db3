"""Fork, exit, garbage collection, signals."""

import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from inlay.core.errors import TransferTimeoutError
from inlay.transfer import Op, Transfer, TransferEngine
from tests.integration.transfer.conftest import ROOT, Target
from tests.integration.transfer.target import SIZE, TOKEN, pattern

SCRIPT = """
import os, sys
from inlay.core.errors import EngineClosedError
from inlay.transfer import Op, Transfer, TransferEngine
from tests.integration.transfer.target import TOKEN
engine = TransferEngine(token=TOKEN, transports=["tcp"])
peer = engine.connect(sys.argv[1])
remote = peer["source"]
local = engine.allocate(64 << 20)
submit = lambda: engine.submit([Transfer(Op.READ, local, remote[0 : 64 << 20])])
"""


def run_script(code: str, target: Target) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + code, target.address],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    "code",
    [
        "batches = [submit() for _ in range(20)]",
        "for _ in range(20): submit()",
        "batch = submit(); sys.exit('stop')",
        "batch = submit(); del engine, peer, remote",
        "import threading; threading.Thread(target=submit().wait, daemon=True).start()",
    ],
    ids=["kept", "dropped", "exit", "engine-dropped", "waiting"],
)
def test_exit_with_batches_in_flight(target: Target, code: str) -> None:
    result = run_script(code, target)
    assert result.returncode == ("sys.exit" in code)
    assert result.stderr == ("stop\n" if "sys.exit" in code else "")


@pytest.mark.parametrize("closed", [False, True])
def test_exit_while_threads_call(closed: bool) -> None:
    """Short calls, so that some thread is on its way back from one when the interpreter ends."""
    code = """
import random, sys, threading, time
from inlay.core.errors import EngineClosedError
from inlay.transfer import Access, Op, Transfer, TransferEngine
from tests.integration.transfer.target import TOKEN
owner, engine = TransferEngine(token=TOKEN), TransferEngine(token=TOKEN)
owner.allocate(1 << 20, name="kv", remote=Access.WRITE)
remote = engine.connect(owner.address)["kv"]
ready = threading.Barrier(7)
def work(thread):
    local, at = engine.allocate(4096), thread << 12
    ready.wait()
    while True:
        try:
            engine.submit([Transfer(Op.READ, local, remote[at : at + 4096])]).wait()
        except EngineClosedError:
            time.sleep(0)
for thread in range(6):
    threading.Thread(target=work, args=(thread,), daemon=True).start()
ready.wait()
time.sleep(random.random() / 50)
if sys.argv[1] == "True":
    engine.close(), owner.close()
    time.sleep(random.random() / 200)
"""
    for _ in range(6):  # one of three aborted once
        result = subprocess.run(
            [sys.executable, "-c", code, str(closed)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
        )
        assert result.returncode == 0, result.stderr


def test_fork(target: Target) -> None:
    code = """
batch = submit()
child = os.fork()
if child == 0:
    refused = 0
    for call in (submit, batch.wait, lambda: engine.allocate(1), lambda: peer["source"]):
        try:
            call()
        except EngineClosedError as error:
            refused += "fork" in str(error)
    own = TransferEngine(token=TOKEN)
    near = own.allocate(1000)
    own.read(near, own.connect(sys.argv[1])["source"][0:1000])
    engine.close()
    own.close()
    sys.exit(10 + refused)
_, status = os.waitpid(child, 0)
batch.wait()
submit().wait()
print(os.waitstatus_to_exitcode(status))
"""
    result = run_script(code, target)
    assert (result.stdout, result.stderr) == ("14\n", "")


def test_a_forked_child_does_not_hide_a_death(engine: TransferEngine, target: Target) -> None:
    """The child of a target keeps none of its sockets open."""
    peer = engine.connect(target.address)
    child = target.tell("__import__('os').fork() or __import__('time').sleep(60)")
    try:
        target.process.kill()
        end = time.monotonic() + 10
        while peer.alive:
            assert time.monotonic() < end
    finally:
        os.kill(child, signal.SIGKILL)


def test_buffers_live_until_their_transfers_end(engine: TransferEngine, target: Target) -> None:
    remote = engine.connect(target.address)["source"]
    array = np.zeros(64 << 20, np.uint8)
    watch = weakref.ref(array)
    segment = engine.register(array)
    batch = engine.submit([Transfer(Op.READ, segment, remote[0 : 64 << 20])])
    del array
    assert watch() is not None
    segment.deregister()  # waits
    assert watch() is None
    batch.wait()


class Interrupted(Exception):
    """Raised by the signal handler below."""


def test_signals_interrupt_a_wait(engine: TransferEngine, target: Target) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    remote = engine.connect(target.address)["source"]
    batch_memory = engine.allocate(1000)
    target.stop()
    batch = engine.submit([Transfer(Op.READ, batch_memory, remote[0:1000])], deadline_s=20)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            batch.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not batch.done
    target.go_on()
    batch.wait()


def test_the_gil_is_free_while_bytes_move(engine: TransferEngine, target: Target) -> None:
    remote = engine.connect(target.address)["source"][0:10]
    local = engine.allocate(10)
    target.stop()
    counted = 0
    done = threading.Event()

    def wait() -> None:
        with pytest.raises(TransferTimeoutError):
            engine.read(local, remote, deadline_s=0.5)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not done.is_set():
        counted += 1
    thread.join()
    assert counted > 10_000


def test_the_token_of_the_runtime_directory() -> None:
    with TransferEngine() as one, TransferEngine() as other:
        one.register(pattern(100), name="kv")
        other.read(other.allocate(100), other.connect(one.address)["kv"])
    with TransferEngine(token=TOKEN) as third:
        assert third.port > 0 and SIZE
