"""Arguments that cannot be: a typed error that names them, and the engine goes on."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from inlay.core.errors import (
    ArgumentError,
    ConfigError,
    EngineClosedError,
    InlayError,
    PeerUnreachableError,
    SegmentAccessError,
    SegmentClosedError,
    SegmentNotFoundError,
    SegmentOverlapError,
    SegmentRangeError,
    WaitTimeoutError,
)
from inlay.kernels import native_problem
from inlay.transfer import (
    Access,
    Op,
    Peer,
    Ranges,
    Transfer,
    TransferConfig,
    TransferEngine,
)

TOKEN = bytes(range(32))


@pytest.fixture(autouse=True)
def _needs_extension() -> None:
    if native_problem() is not None:
        pytest.skip(f"needs the extension: {native_problem()}")


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN) as engine:
        engine.allocate(1000, name="readable")
        engine.allocate(1000, name="writable", remote=Access.WRITE)
        engine.allocate(1000, name="private", remote=Access.NONE)
        yield engine
        peer = engine.connect(engine.address)  # and it still works
        engine.read(engine.allocate(1000), peer["readable"])


@pytest.fixture
def peer(engine: TransferEngine) -> Peer:
    return engine.connect(engine.address)


def test_ranges_beyond_a_segment(engine: TransferEngine, peer: Peer) -> None:
    local, remote = engine.allocate(100), peer["readable"]
    for start, stop in ((0, 101), (101, 101), (50, 40), (-101, 5)):
        with pytest.raises(SegmentRangeError):
            local[start:stop]
    with pytest.raises(SegmentRangeError, match="1001"):
        remote[0:1001]
    assert (len(local[:]), len(local[-10:]), local[90:].offset, len(remote[5:])) == (
        100,
        10,
        90,
        995,
    )
    with pytest.raises(ArgumentError, match="step"):
        local[0:10:2]
    with pytest.raises(ArgumentError, match="10 and 20 bytes"):
        Transfer(Op.READ, local[0:10], remote[0:20])


def test_ranges_beyond_in_arrays(engine: TransferEngine, peer: Peer) -> None:
    local, remote = engine.allocate(100), peer["readable"]

    def ranges(near: list[int], far: list[int], lengths: list[int] | int) -> Ranges:
        at = [np.array(part, np.int64) for part in (near, far)]
        each = lengths if isinstance(lengths, int) else np.array(lengths, np.int64)
        return Ranges(Op.READ, local[10:60], remote, *at, each)

    assert len(ranges([0, 49], [0, 999], 1)) == 2
    for near, far, lengths in (
        ([0, 50], [0, 0], 1),
        ([0, 0], [0, 1000], 1),
        ([0, 0], [0, 0], [1, 51]),
        ([2**62, 0], [0, 0], 2**62),
    ):
        with pytest.raises(SegmentRangeError, match="range"):
            ranges(near, far, lengths)
    for near, far, lengths in (
        ([0, -1], [0, 0], 1),
        ([0], [-(2**63)], 1),
        ([0], [0], -1),
        ([0], [0], [-1]),
        ([0, 1], [0], 1),
        ([0, 1], [0, 1], [1]),
    ):
        with pytest.raises(ArgumentError):
            ranges(near, far, lengths)
    with pytest.raises(ArgumentError, match="int64"):
        Ranges(Op.READ, local, remote, np.zeros(1, np.int32), np.zeros(1, np.int64), 1)
    with pytest.raises(ArgumentError):
        Ranges(Op.READ, local, remote, np.zeros(4, np.int64)[::2], np.zeros(2, np.int64), 1)


def test_no_segment_of_that_name(peer: Peer) -> None:
    with pytest.raises(
        SegmentNotFoundError, match=r"no segment 'kv'; it has .*'readable'"
    ) as caught:
        peer["kv"]
    assert (caught.value.segment, caught.value.peer) == ("kv", peer.address)
    assert not str(caught.value).startswith("'")
    with pytest.raises(KeyError):
        peer["private"]
    for name in ("", "x" * 256):
        with pytest.raises(ArgumentError, match="name"):
            peer[name]


def test_access(engine: TransferEngine, peer: Peer) -> None:
    local = engine.allocate(1000)
    with pytest.raises(SegmentAccessError, match="'readable'.*not offered for writing"):
        engine.write(local, peer["readable"])
    fixed = engine.register(bytes(1000))
    with pytest.raises(PermissionError, match="read-only"):
        engine.read(fixed, peer["readable"])
    engine.write(fixed, peer["writable"])
    with pytest.raises(SegmentAccessError, match="read-only"):
        engine.register(bytes(10), remote=Access.WRITE)
    assert not peer["readable"].writable and peer["writable"].writable


def test_overlap(engine: TransferEngine) -> None:
    memory = np.zeros(100, np.uint8)
    segment = engine.register(memory[10:60], name="first")
    for part in (memory, memory[59:], memory[:11], memory[20:30]):
        with pytest.raises(SegmentOverlapError, match="'first'"):
            engine.register(part)
    engine.register(memory[60:])
    engine.register(memory[:10])
    segment.deregister()
    engine.register(memory[10:60], name="first")
    with pytest.raises(ArgumentError, match="'first'"):
        engine.allocate(1, name="first")


def test_buffers_that_cannot_be_registered(engine: TransferEngine) -> None:
    for buffer in (np.zeros((4, 4))[:, 1], np.zeros(0), 7, None, "text"):
        with pytest.raises(ArgumentError, match="buffer"):
            engine.register(buffer)
    for size in (0, -1):
        with pytest.raises(ArgumentError, match="size"):
            engine.allocate(size)
    for name in ("", "x" * 256):
        with pytest.raises(ArgumentError, match="name"):
            engine.allocate(10, name=name)


def test_closed_segments(engine: TransferEngine, peer: Peer) -> None:
    data = bytearray(1000)
    with engine.register(data, name="short") as segment:
        remote = peer["short"]
        with pytest.raises(BufferError):
            data.clear()
        with pytest.raises(BufferError, match="registered"):
            memoryview(segment)
    data.clear()  # nothing holds it any more
    assert not segment.registered
    segment.deregister()
    with pytest.raises(SegmentClosedError, match="'short'"):
        engine.write(segment, peer["writable"])
    with pytest.raises(SegmentClosedError, match="'short'"):
        engine.read(engine.allocate(1000), remote)


def test_a_batch_with_one_failure_does_the_rest(engine: TransferEngine, peer: Peer) -> None:
    gone = engine.allocate(1000, name="gone")
    remote = peer["gone"]
    gone.deregister()
    local = engine.allocate(2000)
    batch = engine.submit(
        [
            Transfer(Op.READ, local[0:1000], remote),
            Transfer(Op.READ, local[1000:], peer["readable"]),
        ]
    )
    with pytest.raises(SegmentClosedError):
        batch.wait()
    assert [batch.status(i).state for i in range(2)] == ["failed", "done"]
    assert isinstance(batch.status(0).error, SegmentClosedError)
    assert batch.status(1).error is None and batch.status(1).bytes_done == 1000
    with pytest.raises(IndexError):
        batch.status(2)


def test_allocated_memory_outlives_its_registration(engine: TransferEngine) -> None:
    segment = engine.allocate(10_000)
    view = np.frombuffer(segment, np.uint8)
    segment.deregister()
    del segment
    view[:] = 1
    assert view.sum() == 10_000


def test_arguments_of_submit(engine: TransferEngine, peer: Peer) -> None:
    local, remote = engine.allocate(1000), peer["readable"]
    one = Transfer(Op.READ, local, remote)
    calls: list[Callable[[], object]] = [
        lambda: engine.submit([one, 7]),  # type: ignore[list-item]
        lambda: Transfer(Op.READ, None, remote),  # type: ignore[arg-type]
        lambda: Ranges(Op.READ, local, remote, None, None, 1),  # type: ignore[arg-type]
        lambda: Transfer(Op.READ, remote, local),  # type: ignore[arg-type]
        lambda: Transfer(2, local, remote),
        lambda: engine.submit([one], deadline_s=0),
        lambda: engine.submit([one], deadline_s=float("nan")),
        lambda: engine.submit([one], deadline_s=float("inf")),
        lambda: engine.submit([one]).wait(-1),
        lambda: engine.submit([one]).cancel(timeout_s=0),
        lambda: engine.connect("nowhere"),
        lambda: engine.connect("127.0.0.1:"),
        lambda: engine.connect("127.0.0.1:port"),
        lambda: engine.connect("127.0.0.1:65536"),
        lambda: engine.connect("127.0.0.1:1", timeout_s=-1),
        lambda: TransferEngine(token=b"short"),
        lambda: TransferEngine("300.1.1.1:0", token=TOKEN),
    ]
    for call in calls:
        with pytest.raises(ArgumentError):
            call()
    with pytest.raises(PeerUnreachableError):
        engine.connect("127.0.0.1:1")
    with pytest.raises(ConfigError, match="spin_us"):
        TransferConfig(spin_us=-1)
    with pytest.raises(ConfigError, match="traffic_class"):
        TransferConfig(traffic_class="urgent")  # type: ignore[arg-type]
    for bandwidth in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="eth0"):
            TransferConfig(nic_bandwidths={"eth0": bandwidth})
    engine.submit([one], deadline_s=None).wait()
    batch = engine.submit([one])
    try:
        batch.wait(0)
    except WaitTimeoutError:
        batch.wait()


def test_a_closed_engine() -> None:
    engine = TransferEngine(token=TOKEN)
    data = bytearray(1000)
    segment = engine.register(data, name="kv")
    peer = engine.connect(engine.address)
    remote, local = peer["kv"], engine.allocate(1000)
    engine.close()
    engine.close()
    data.clear()
    assert not peer.alive and not segment.registered
    calls: list[Callable[[], object]] = [
        lambda: engine.submit([Transfer(Op.READ, local, remote)]),
        lambda: engine.connect("127.0.0.1:1"),
        lambda: engine.allocate(10),
        lambda: engine.register(bytearray(10)),
        lambda: peer["kv"],
    ]
    for call in calls:
        with pytest.raises(EngineClosedError):
            call()
    assert issubclass(EngineClosedError, InlayError)
