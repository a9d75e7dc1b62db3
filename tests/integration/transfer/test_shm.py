"""Memory that processes of one host share: dying, stopped, closing, and unwilling targets."""

import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from inlay.core.errors import (
    PeerDiedError,
    SegmentClosedError,
    TransferCancelledError,
    TransferTimeoutError,
)
from inlay.transfer import Access, Op, Transfer, TransferEngine
from tests.integration.transfer.conftest import ROOT, Target
from tests.integration.transfer.target import SIZE, TOKEN, pattern
from tests.support.directories import free_port


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN, transports=["shm"]) as engine:
        yield engine


@pytest.fixture
def willing(target: Target) -> Target:
    """A target whose foreign segment takes writes."""
    target.tell(
        "segments.update(data=np.zeros(80 << 20, np.uint8)) or segments.update(foreign="
        "engine.register(segments['data'], name='foreign', remote=Access.WRITE))"
    )
    return target


def foreign_digest(target: Target, stop: int) -> str:
    digest: str = target.tell(
        f"__import__('hashlib').blake2b(memoryview(segments['data'])[:{stop}]).hexdigest()"
    )
    return digest


@pytest.mark.parametrize("size", [1, 4096, 300_000, 5_000_003, 64 << 20])
def test_a_write_into_memory_that_was_not_allocated(
    engine: TransferEngine, willing: Target, size: int
) -> None:
    data = pattern(SIZE, seed=4)
    local = engine.register(data, remote=Access.NONE)
    engine.write(local[3 : 3 + size], engine.connect(willing.address)["foreign"][0:size])
    assert foreign_digest(willing, size) == hashlib.blake2b(data[3 : 3 + size]).hexdigest()


@pytest.mark.parametrize("name", ["source", "sink", "foreign"])
def test_a_target_killed_in_a_copy(engine: TransferEngine, willing: Target, name: str) -> None:
    remote = engine.connect(willing.address)[name]
    local = engine.allocate(SIZE, remote=Access.NONE)
    op = Op.READ if name == "source" else Op.WRITE
    batch = engine.submit([Transfer(op, local=local[:], remote=remote[:])] * 8, deadline_s=20)
    willing.process.kill()
    # What is mapped stays where it is: those copies may all end before the death is seen.
    try:
        batch.wait(timeout_s=10)
    except PeerDiedError:
        pass
    with pytest.raises(PeerDiedError):
        for _ in range(1000):
            engine.submit([Transfer(op, local=local[:], remote=remote[:])], deadline_s=5).wait()
    assert batch.settled
    local.deregister(timeout_s=5)


def test_a_stopped_target(engine: TransferEngine, willing: Target) -> None:
    peer = engine.connect(willing.address)
    source, sink, foreign = peer["source"], peer["sink"], peer["foreign"]
    local = engine.allocate(SIZE, remote=Access.NONE)
    engine.write(local[0:1], sink[0:1])
    data = pattern(SIZE)
    willing.stop()
    engine.read(local, source)  # nothing is asked of it
    np.testing.assert_array_equal(np.frombuffer(local, np.uint8), data)
    engine.write(local, sink)
    # Only it can do this; and it does nothing of it later.
    start = time.monotonic()
    with pytest.raises(TransferTimeoutError) as caught:
        engine.write(local, foreign, deadline_s=0.3)
    assert time.monotonic() - start < 5
    assert caught.value.remote_settled is False
    batch = engine.submit([Transfer(Op.WRITE, local=local[:], remote=foreign[:])])
    assert batch.cancel(timeout_s=0.2) is False
    with pytest.raises(TransferCancelledError):
        batch.wait()
    willing.go_on()
    end = time.monotonic() + 10
    while not batch.settled:
        assert time.monotonic() < end
        time.sleep(0.001)
    before = foreign_digest(willing, SIZE)
    time.sleep(0.2)
    assert foreign_digest(willing, SIZE) == before
    engine.write(local, foreign)
    assert foreign_digest(willing, SIZE) == hashlib.blake2b(data).hexdigest()


@pytest.mark.parametrize("name", ["sink", "foreign"])
def test_deregistration_while_peers_write(
    engine: TransferEngine, willing: Target, name: str
) -> None:
    peer = engine.connect(willing.address)
    local = engine.allocate(SIZE, remote=Access.NONE)
    remote = peer[name]
    ended: list[Exception] = []

    def write() -> None:
        try:
            while True:
                engine.write(local, remote)
        except SegmentClosedError as error:
            ended.append(error)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    time.sleep(0.05)
    willing.tell(f"segments['{name}'].deregister()")
    # Its memory is its own again.
    memory = "np.frombuffer(segments['" + ("data" if name == "foreign" else name) + "'], np.uint8)"
    willing.tell(f"{memory}.fill(7)")
    for writer in writers:
        writer.join(20)
    assert len(ended) == 2
    assert willing.tell(f"int(({memory} != 7).sum())") == 0


def test_local_deregistration_waits_for_copies(engine: TransferEngine, target: Target) -> None:
    remote = engine.connect(target.address)["source"]
    local = engine.allocate(SIZE, remote=Access.NONE)
    engine.read(local, remote)
    # Seconds of copies, so that they certainly go on.
    batch = engine.submit([Transfer(Op.READ, local=local[:], remote=remote[:])] * 200)
    local.deregister(cancel=True, timeout_s=10)
    view = np.frombuffer(local, np.uint8)
    view.fill(9)
    with pytest.raises((TransferCancelledError, SegmentClosedError)):
        batch.wait()
    time.sleep(0.05)
    assert (view == 9).all()


def test_a_target_that_restarts(
    engine: TransferEngine, start_target: Callable[..., Target]
) -> None:
    first = start_target(f"127.0.0.1:{free_port()}")
    old = engine.connect(first.address)["source"]
    local = engine.allocate(4096, remote=Access.NONE)
    engine.read(local, old[0:4096])
    first.process.kill()
    first.process.wait()
    second = start_target(first.address)
    end = time.monotonic() + 10
    with pytest.raises(PeerDiedError):
        while time.monotonic() < end:
            engine.read(local, old[0:4096])
    view = np.frombuffer(local, np.uint8)
    view.fill(0)
    engine.read(local, engine.connect(second.address)["source"][0:4096])
    np.testing.assert_array_equal(view, pattern(SIZE)[:4096])


def drop_tracing() -> None:
    """Without it root, too, needs a willing target."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, data) == 0
    for word in (0, 1):  # effective, permitted
        data[word] &= ~(1 << 19)
    assert libc.capset(header, data) == 0


def in_a_process_that_cannot_trace(code: str, *arguments: str) -> list[str]:
    script = (
        "import sys\nimport numpy as np\n"
        "from inlay.transfer import *\n"
        "from tests.integration.transfer.target import SIZE, TOKEN, pattern\n"
        "from tests.integration.transfer.test_shm import drop_tracing\n"
        "drop_tracing()\n" + code
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_target_that_lets_nobody_read_it(target: Target) -> None:
    """Its allocated memory is mapped as ever; the rest goes over tcp, and the peer says why."""
    target.tell("__import__('ctypes').CDLL(None).prctl(4, 0, 0, 0, 0)")  # PR_SET_DUMPABLE
    code = """
with TransferEngine(token=TOKEN) as engine:
    peer = engine.connect(sys.argv[1])
    print([p for p in peer.problems if p.startswith("shm")])
    local = engine.allocate(SIZE)
    engine.read(local, peer["source"])
    print((np.frombuffer(local, np.uint8) == pattern(SIZE)).all())
    engine.write(local, peer["sink"])
with TransferEngine(token=TOKEN, transports=["shm"]) as engine:
    peer = engine.connect(sys.argv[1])
    engine.write(engine.register(pattern(4096)), peer["sink"][0:4096])
    try:
        engine.read(engine.allocate(4096), peer["source"][0:4096])
    except Exception as error:
        print(type(error).__name__)
"""
    problems, right, refused = in_a_process_that_cannot_trace(code, target.address)
    assert "dumpable" in problems
    assert right == "True"
    assert refused == "TransportUnavailableError"
    assert target.sink_digest(0, SIZE) == hashlib.blake2b(pattern(SIZE)).hexdigest()


def test_a_target_that_shuts_itself_in_the_middle(target: Target) -> None:
    """Reads go on over tcp, with no error to the caller."""
    code = """
import os, threading
with TransferEngine(token=TOKEN) as engine:
    source = engine.connect(sys.argv[1])["source"]
    local = engine.allocate(SIZE)
    engine.read(local, source)
    print("read", flush=True)
    sys.stdin.readline()
    for _ in range(5):
        view = np.frombuffer(local, np.uint8)
        view.fill(0)
        engine.read(local, source)
        print(bool((view == pattern(SIZE)).all()), flush=True)
"""
    script = (
        "import sys\nimport numpy as np\n"
        "from inlay.transfer import *\n"
        "from tests.integration.transfer.target import SIZE, TOKEN, pattern\n"
        "from tests.integration.transfer.test_shm import drop_tracing\n"
        "drop_tracing()\n" + code
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, target.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "read\n"
        target.tell("__import__('ctypes').CDLL(None).prctl(4, 0, 0, 0, 0)")
        output, errors = process.communicate("go on\n", timeout=60)
    assert (output, errors) == ("True\n" * 5, "")


@pytest.mark.parametrize("name", ["sink", "source"])
def test_a_link_that_breaks_is_made_again(target: Target, name: str) -> None:
    """Meanwhile all goes over tcp, with no error to the caller."""
    with TransferEngine(token=TOKEN) as engine:
        remote = engine.connect(target.address)[name]
        local = engine.allocate(SIZE)
        expected = pattern(SIZE) if name == "source" else np.zeros(SIZE, np.uint8)

        def used() -> int:
            return sum(path.read_bytes for path in engine.paths() if path.transport == "shm")

        for _ in range(3):
            engine.read(local, remote)
            assert used() > 0
            batch = engine.submit([Transfer(Op.READ, local, remote)] * 4)
            assert target.tell("cut_side_channels()") == 1
            cut = time.monotonic()
            batch.wait()
            before = used()
            while used() == before:
                assert time.monotonic() - cut < 5, "shared memory is not used again"
                engine.read(local[0:4096], remote[0:4096])
            np.testing.assert_array_equal(np.frombuffer(local, np.uint8), expected)


def test_another_user_goes_over_tcp(target: Target) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    code = """
import os
os.setresuid(65534, 65534, 65534)
with TransferEngine(token=TOKEN) as engine:
    peer = engine.connect(sys.argv[1])
    print([p for p in peer.problems if p.startswith("shm")])
    local = engine.allocate(SIZE)
    engine.read(local, peer["source"])
    print((np.frombuffer(local, np.uint8) == pattern(SIZE)).all())
"""
    problems, right = in_a_process_that_cannot_trace(code, target.address)
    assert "user 0" in problems and "65534" in problems
    assert right == "True"


def test_a_forked_child_of_the_target(engine: TransferEngine, target: Target) -> None:
    """It is not the target: what is read and written is the parent's memory."""
    peer = engine.connect(target.address)
    local = engine.allocate(SIZE, remote=Access.NONE)
    engine.read(local, peer["source"])
    child = target.tell("__import__('os').fork() or __import__('time').sleep(60)")
    try:
        target.process.kill()
        target.process.wait()
        end = time.monotonic() + 10
        with pytest.raises(PeerDiedError):
            while time.monotonic() < end:
                engine.read(local, peer["source"])
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_of_the_initiator_leaves_its_visits_alone(
    engine: TransferEngine, target: Target
) -> None:
    sink = engine.connect(target.address)["sink"]
    local = engine.allocate(SIZE, remote=Access.NONE)
    engine.write(local, sink)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    engine.write(local, sink)
    target.tell("segments['sink'].deregister(timeout_s=5)")
    with pytest.raises(SegmentClosedError):
        engine.write(local, sink)


def test_an_initiator_that_dies_does_not_keep_the_segment(target: Target) -> None:
    code = """
engine = TransferEngine(token=TOKEN, transports=["shm"])
sink = engine.connect(sys.argv[1])["sink"]
local = engine.allocate(SIZE)
print("ready", flush=True)
while True:
    engine.write(local, sink)
"""
    script = (
        "import sys\nfrom inlay.transfer import *\n"
        "from tests.integration.transfer.target import SIZE, TOKEN\n" + code
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, target.address],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.02)
        process.kill()
    start = time.monotonic()
    target.tell("segments['sink'].deregister(timeout_s=20)")
    assert time.monotonic() - start < 5
