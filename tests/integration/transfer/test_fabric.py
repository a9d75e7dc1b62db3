"""Transport fabric over libfabric's tcp provider, between two processes."""

import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from inlay.core.errors import (
    PeerError,
    SegmentClosedError,
    TransferCancelledError,
    TransferTimeoutError,
    TransportUnavailableError,
)
from inlay.transfer import Op, Ranges, Transfer, TransferEngine
from tests.integration.transfer.conftest import ROOT, Target
from tests.integration.transfer.target import SIZE, TOKEN, pattern
from tests.support.netns import Link, ShapedLinks

MANY = 64 << 20
PIPES: dict[str, Any] = {
    "stdin": subprocess.PIPE,
    "stdout": subprocess.PIPE,
    "text": True,
    "cwd": ROOT,
}


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    try:
        engine = TransferEngine(token=TOKEN, transports=("fabric",))
    except TransportUnavailableError as error:
        pytest.skip(str(error))
    with engine:
        yield engine


@pytest.fixture
def target(start_target: Callable[..., Target]) -> Target:
    return start_target("127.0.0.1:0", "fabric")


def test_only_fabric_moves_bytes(engine: TransferEngine, target: Target) -> None:
    transports = engine.transports
    assert transports["fabric"] is None and transports["tcp"] is not None
    assert target.tell("[n for n, why in engine.transports.items() if why is None]") == ["fabric"]


def test_loading_leaves_ctrl_c_to_the_host_process() -> None:
    # In a process of its own: libfabric is loaded once. Debian's takes SIGINT and SIGTERM.
    code = f"""
import os, signal
from inlay.core.errors import TransportUnavailableError
from inlay.transfer import TransferEngine
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append("SIGTERM"))
try:
    engine = TransferEngine(token={TOKEN!r}, transports=("fabric",))
except TransportUnavailableError as error:
    print(error)
    raise SystemExit(77)
os.kill(os.getpid(), signal.SIGTERM)
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    ended.append("KeyboardInterrupt")
print(ended)
"""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    if ran.returncode == 77:
        pytest.skip(ran.stdout)
    assert ran.stdout == "['SIGTERM', 'KeyboardInterrupt']\n", ran.stderr
    assert ran.returncode == 0


def test_loopback_uses_it_only_by_name() -> None:
    with TransferEngine(token=TOKEN) as engine:
        assert "loopback" in (engine.transports["fabric"] or "")


def test_it_does_not_verify_and_says_so(engine: TransferEngine, target: Target) -> None:
    local = engine.allocate(4096)
    source = engine.connect(target.address)["source"][0:4096]
    with pytest.raises(TransportUnavailableError, match="verify=False"):
        engine.read(local, source, verify=True)
    engine.read(local, source)
    assert bytes(memoryview(local)) == pattern(SIZE)[:4096].tobytes()


@pytest.mark.parametrize("size", [1, 4095, 65537, 5_000_003, MANY])
def test_read_and_write(engine: TransferEngine, target: Target, size: int) -> None:
    peer = engine.connect(target.address)
    expected = pattern(SIZE)
    local = engine.allocate(size + 200)
    view = np.frombuffer(local, np.uint8)
    engine.read(local[77 : 77 + size], peer["source"][4097 : 4097 + size])
    np.testing.assert_array_equal(view[77 : 77 + size], expected[4097 : 4097 + size])
    assert not view[:77].any() and not view[77 + size :].any()
    engine.write(local[77 : 77 + size], peer["sink"][3 : 3 + size])
    digest = hashlib.blake2b(expected[4097 : 4097 + size]).hexdigest()
    assert target.sink_digest(3, 3 + size) == digest


@pytest.mark.parametrize("op", list(Op))
def test_ranges(engine: TransferEngine, target: Target, op: Op) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 9000, 3000)
    near = np.cumsum(lengths + 3) - lengths
    far = rng.permutation(3000) * 9000
    peer = engine.connect(target.address)
    local = engine.allocate(int(near[-1] + lengths[-1]))
    ours = np.frombuffer(local, np.uint8)
    expected = ours.copy() if op == Op.READ else np.zeros(SIZE, np.uint8)
    if op == Op.WRITE:
        ours[:] = pattern(ours.size, 5)
    source = pattern(SIZE) if op == Op.READ else ours.copy()
    for mine, theirs, length in zip(near, far, lengths, strict=True):
        put, take = (mine, theirs) if op == Op.READ else (theirs, mine)
        expected[put : put + length] = source[take : take + length]
    remote = peer["source" if op == Op.READ else "sink"]
    engine.submit([Ranges(op, local, remote, near, far, lengths)]).wait()
    if op == Op.READ:
        np.testing.assert_array_equal(ours, expected)
    else:
        assert target.sink_digest(0, SIZE) == hashlib.blake2b(expected).hexdigest()


def test_cancelled_reads_land_nothing_and_others_go_on(
    engine: TransferEngine, target: Target
) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(MANY)
    other = engine.allocate(MANY)
    view = np.frombuffer(local, np.uint8)
    for _ in range(5):
        batch = engine.submit([Transfer(Op.READ, local, peer["source"][0:MANY])])
        beside = engine.submit([Transfer(Op.READ, other, peer["source"][0:MANY])])
        assert batch.cancel()
        left = view.copy()
        beside.wait(20)
        np.testing.assert_array_equal(np.frombuffer(other, np.uint8), pattern(SIZE)[:MANY])
        np.testing.assert_array_equal(view, left)
        with pytest.raises(TransferCancelledError):
            batch.wait()


def test_closed_segment_is_told(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(4096)
    remote = peer["sink"]
    engine.write(local, remote[0:4096])
    target.tell("segments['sink'].deregister()")
    with pytest.raises(SegmentClosedError, match="sink"):
        engine.write(local, remote[0:4096], deadline_s=10)
    engine.read(local, peer["source"][0:4096])  # the connection came back
    np.testing.assert_array_equal(np.frombuffer(local, np.uint8), pattern(SIZE)[:4096])


@pytest.mark.parametrize("op", list(Op))
def test_killed_peer(engine: TransferEngine, target: Target, op: Op) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(MANY)
    remote = peer["source" if op == Op.READ else "sink"][0:MANY]
    batches = [engine.submit([Transfer(op, local, remote)], deadline_s=20) for _ in range(8)]
    target.process.kill()
    begin = time.monotonic()
    with pytest.raises(PeerError, match=target.address):
        for batch in batches:
            batch.wait()
    assert time.monotonic() - begin < 10


def test_stopped_target(engine: TransferEngine, target: Target) -> None:
    """Writes that were given up do not land once it goes on, after the lease."""
    peer = engine.connect(target.address)
    local = engine.allocate(MANY)
    np.frombuffer(local, np.uint8)[:] = 7
    sink = peer["sink"]
    engine.write(local[0:4096], sink[0:4096])
    time.sleep(0.3)  # until it sleeps: one that is stopped in the middle of a receive ends it later
    target.stop()
    with pytest.raises(TransferTimeoutError) as caught:
        engine.write(local, sink[0:MANY], deadline_s=1)
    assert caught.value.remote_settled is False
    time.sleep(2.5)  # longer than a lease
    target.go_on()
    first = target.sink_digest(0, MANY)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        assert target.sink_digest(0, MANY) == first


class Inside(Target):
    """A target in a namespace."""

    def __init__(self, links: ShapedLinks, *arguments: str) -> None:
        module = [sys.executable, "-m", "tests.integration.transfer.target", *arguments]
        self.process = links.start("right", module, **PIPES)
        self.address = self._line().strip()


def wait_for_use(link: Link, most_s: float) -> float:
    """Returns how long it took until the link carried 4 MB."""
    before, begin = link.bytes_sent("right"), time.monotonic()
    while link.bytes_sent("right") - before < 4_000_000:
        assert time.monotonic() - begin < most_s, "the link is not used"
        time.sleep(0.01)
    return time.monotonic() - begin


def start_mover(links: ShapedLinks, *arguments: str) -> subprocess.Popen[str]:
    module = [sys.executable, "-m", "tests.integration.transfer.mover", *arguments]
    mover = links.start("left", module, **PIPES)
    assert mover.stdout is not None and mover.stdout.readline() == "ready\n"
    return mover


@pytest.mark.netns
@pytest.mark.parametrize("silently", [False, True])
def test_cut_rail(silently: bool) -> None:
    """Slices of a rail that is cut go over the other one, and it is used again when it is back."""
    with ShapedLinks([1600, 400]) as links:
        target = Inside(links, "0.0.0.0:0", "fabric")
        address = f"{links[1].right}:{target.address.rpartition(':')[2]}"
        mover = start_mover(links, "0.0.0.0:0", address, "fabric")
        for _ in range(2):
            wait_for_use(links[0], 5)
            links[0].cut(silently=silently)
            wait_for_use(links[1], 5)
            links[0].restore()
        wait_for_use(links[0], 5)
        count, _ = mover.communicate(timeout=30)
        assert int(count) > 0


def received(links: ShapedLinks, engine_port: str) -> dict[str, int]:
    """Bytes that connections of the left side to other ports than the engine's have received."""
    lines = links.run("left", "ss -Htin state established").splitlines()
    counts = {}
    for ends, details in zip(lines[::2], lines[1::2], strict=True):
        local, remote = ends.split()[2:4]
        if engine_port not in (local.rpartition(":")[2], remote.rpartition(":")[2]):
            number = re.search(r"bytes_received:(\d+)", details)
            counts[local] = int(number[1]) if number else 0
    return counts


def wait_for_fabric(links: ShapedLinks, engine_port: str) -> None:
    before, end = received(links, engine_port), time.monotonic() + 5
    while not any(
        count - before.get(local, 0) > 4_000_000
        for local, count in received(links, engine_port).items()
    ):
        assert time.monotonic() < end, "fabric is not used"


@pytest.mark.netns
def test_all_fabric_cut() -> None:
    """Transfers go on over tcp without an error, and return to fabric when it is back."""
    with ShapedLinks([1600, 400]) as links:
        # Fabric joins ports of equal networks: those of the first link alone.
        change = "ip addr {} {}/{} dev {}".format
        name, host = links[1].right_name, links[1].right
        links.run("right", f"{change('del', host, 24, name)} && {change('add', host, 25, name)}")
        target = Inside(links, "0.0.0.0:0", "fabric", "tcp")
        port = target.address.rpartition(":")[2]
        address = f"{links[1].right}:{port}"
        mover = start_mover(links, "0.0.0.0:0", address, "fabric", "tcp")
        for _ in range(2):
            wait_for_fabric(links, port)
            links[0].cut()
            wait_for_use(links[1], 5)
            links[0].restore()
        wait_for_fabric(links, port)
        count, _ = mover.communicate(timeout=30)
        assert int(count) > 0
