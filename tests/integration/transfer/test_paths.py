"""What engines count of their paths and ports, and paths that an operator pauses."""

import contextlib
import hashlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inlay.core.errors import (
    ArgumentError,
    EngineClosedError,
    PeerRefusedError,
    TransferTimeoutError,
    TransportUnavailableError,
)
from inlay.transfer import Op, Ranges, Transfer, TransferEngine
from inlay.transfer.metrics import TransferCollector
from inlay.transfer.paths import PathInfo
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import SIZE, TOKEN, pattern
from tests.support.directories import free_port

MIB = 1 << 20


def moved(engine: TransferEngine, *transports: str) -> Counter[str]:
    """Bytes by op, of these transports or of all."""
    total: Counter[str] = Counter()
    for path in engine.paths():
        if not transports or path.transport in transports:
            total["read"] += path.read_bytes
            total["write"] += path.written_bytes
    return total


def metrics_of(registry: CollectorRegistry) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            key = tuple(sorted(sample.labels.items()))
            assert key not in found.setdefault(sample.name, {}), "a series twice"
            found[sample.name][key] = sample.value
    return found


def test_counts_add_up_to_what_moved(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(40 * MIB)
    assert moved(engine) == Counter(read=0, write=0)
    assert {path.state for path in engine.paths()} == {"ready"}
    offsets = np.arange(0, 8 * MIB, 16384, dtype=np.int64)
    engine.submit(
        [
            Transfer(Op.READ, local[0 : 20 * MIB], peer["source"][0 : 20 * MIB]),
            Transfer(Op.WRITE, local[20 * MIB : 25 * MIB], peer["sink"][0 : 5 * MIB]),
            Ranges(Op.READ, local, peer["source"], offsets + 30 * MIB, offsets, 10_000),
        ]
    ).wait()
    for _ in range(50):
        engine.read(local[0:4096], peer["source"][0:4096])
    reads = 20 * MIB + len(offsets) * 10_000 + 50 * 4096
    assert moved(engine) == Counter(read=reads, write=5 * MIB)
    for path in engine.paths():
        assert (path.peer, path.inflight_bytes, path.inflight_slices) == (target.address, 0, 0)
        assert sum(path.latencies) == path.slices
        assert not path.retries
        if path.slices:
            assert 0 < path.measured_s < 5 and 0 < path.predicted_s < 5
            assert abs(path.measured_s - path.predicted_s) <= path.error_s * 1.000001
            assert path.latency_sum_s >= path.measured_s * 0.999
            assert path.bandwidth_gbs is not None and path.bandwidth_gbs > 0
    # A slice has at most 2 MiB and 256 ranges.
    assert sum(path.slices for path in engine.paths()) >= 50 + 10 + 3 + 2


def test_what_is_in_flight(target: Target) -> None:
    with TransferEngine(token=TOKEN, transports=("tcp",)) as engine:
        remote = engine.connect(target.address)["source"]
        local = engine.allocate(SIZE)
        engine.read(local[0:4096], remote[0:4096])
        target.stop()
        batch = engine.submit([Transfer(Op.READ, local[0:SIZE], remote[0:SIZE])], deadline_s=60)
        deadline = time.monotonic() + 20
        stopped = engine.paths()
        while not any(path.inflight_slices for path in stopped):
            assert time.monotonic() < deadline
            stopped = engine.paths()
        target.go_on()
        assert 0 < sum(path.inflight_bytes for path in stopped) < SIZE
        batch.wait()
        assert sum(path.inflight_bytes for path in engine.paths()) == 0
        assert moved(engine)["read"] == SIZE + 4096


@pytest.fixture(params=["shm", "fabric"])
def second(request: pytest.FixtureRequest) -> str:
    """Another transport beside tcp."""
    with TransferEngine(token=TOKEN) as engine:
        known = engine.transports
    if request.param not in known:
        pytest.skip(f"no transport {request.param} here")
    return str(request.param)


@pytest.fixture
def two_ways(second: str) -> Iterator[TransferEngine]:
    try:
        engine = TransferEngine(token=TOKEN, transports=("tcp", second))
    except TransportUnavailableError as error:
        pytest.skip(str(error))
    with engine:
        yield engine


def of_transport(engine: TransferEngine, transport: str) -> list[PathInfo]:
    return [path for path in engine.paths() if path.transport == transport]


def test_paused_paths_are_spared_and_used_again(
    two_ways: TransferEngine, second: str, start_target: Callable[..., Target]
) -> None:
    engine = two_ways
    target = start_target("127.0.0.1:0", "tcp", second)
    peer = engine.connect(target.address)
    expected = pattern(SIZE)
    local = engine.allocate(SIZE)
    view = np.frombuffer(local, np.uint8)
    engine.read(local[0 : 8 * MIB], peer["source"][0 : 8 * MIB])
    [first] = {path.transport for path in engine.paths() if path.read_bytes}
    [other] = {"tcp", second} - {first}

    # In the middle of a batch: it ends on the other transport, and nobody sees an error.
    view[:] = 0
    batch = engine.submit([Transfer(Op.READ, local[0:SIZE], peer["source"][0:SIZE])])
    for path in of_transport(engine, first):
        engine.pause(path)
    batch.wait()
    np.testing.assert_array_equal(view, expected)
    paused = of_transport(engine, first)
    assert {(path.state, path.reason) for path in paused} == {("paused", "operator")}
    assert {path.state for path in of_transport(engine, other)} == {"ready"}
    before = moved(engine, first)
    before_other = moved(engine, other)
    engine.write(local[0 : 32 * MIB], peer["sink"][0 : 32 * MIB])
    engine.read(local[0:4096], peer["source"][0:4096])
    assert target.sink_digest(0, 32 * MIB) == hashlib.blake2b(expected[: 32 * MIB]).hexdigest()
    assert moved(engine, first) == before
    assert moved(engine, other) - before_other == Counter(read=4096, write=32 * MIB)

    for path in paused:
        engine.resume(path)
    resumed = time.monotonic()
    while moved(engine, first) == before:
        engine.read(local[0:MIB], peer["source"][0:MIB])
        assert time.monotonic() - resumed < 20
    assert {path.state for path in engine.paths()} == {"ready"}
    assert not any(path.retries for path in engine.paths())


def test_without_a_path_transfers_wait(target: Target) -> None:
    with TransferEngine(token=TOKEN, transports=("tcp",)) as engine:
        peer = engine.connect(target.address)
        source, local = peer["source"], engine.allocate(MIB)
        paths = engine.paths()
        for path in paths:
            engine.pause(path)
        with pytest.raises(TransferTimeoutError):
            engine.read(local[0:4096], source[0:4096], deadline_s=0.2)
        batch = engine.submit([Transfer(Op.READ, local[0:MIB], source[0:MIB])], deadline_s=20)
        time.sleep(0.05)
        assert not batch.done
        for path in paths:
            engine.resume(path)
        batch.wait()
        assert np.array_equal(np.frombuffer(local, np.uint8), pattern(SIZE)[:MIB])


def test_what_cannot_be_paused(engine: TransferEngine, target: Target) -> None:
    engine.connect(target.address)
    [path, *_] = engine.paths()
    with TransferEngine(token=TOKEN) as another:
        with pytest.raises(ArgumentError, match=f"no '{path.name}' .* to peer {target.address}"):
            another.pause(path)
    with pytest.raises(EngineClosedError):
        another.paths()


def test_a_lost_peer_and_its_next_connection(
    engine: TransferEngine, start_target: Callable[..., Target]
) -> None:
    target = start_target(f"127.0.0.1:{free_port()}")
    peer = engine.connect(target.address)
    local = engine.allocate(MIB)
    engine.read(local[0:4096], peer["source"][0:4096])
    target.end()
    deadline = time.monotonic() + 5
    while peer.alive:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert {(path.state, path.reason) for path in engine.paths()} == {("closed", "peer_died")}
    assert moved(engine)["read"] == 4096
    again = start_target(target.address)
    engine.connect(again.address)
    assert {path.state for path in engine.paths()} == {"ready"}
    assert moved(engine)["read"] == 0


def test_prometheus(engine: TransferEngine, target: Target) -> None:
    registry = CollectorRegistry()
    registry.register(TransferCollector(engine))
    peer = engine.connect(target.address)
    local = engine.allocate(8 * MIB)
    engine.read(local[0 : 8 * MIB], peer["source"][0 : 8 * MIB])
    engine.write(local[0:4096], peer["sink"][0:4096])
    [held, *_] = engine.paths()
    engine.pause(held)
    found = metrics_of(registry)

    def value(name: str, **labels: str) -> float:
        """The sum over all series with these labels."""
        return sum(v for k, v in found[name].items() if labels.items() <= dict(k).items())

    who = {"peer": target.address}
    assert value("inlay_transfer_bytes_total", op="read", **who) == 8 * MIB
    assert value("inlay_transfer_bytes_total", op="write", **who) == 4096
    assert value("inlay_transfer_inflight_bytes", **who) == 0
    slices = sum(path.slices for path in engine.paths())
    assert value("inlay_transfer_latency_seconds_count", **who) == slices
    assert value("inlay_transfer_latency_seconds_bucket", le="+Inf", **who) == slices
    assert 0 < value("inlay_transfer_latency_seconds_bucket", le="16.777216", **who) <= slices
    assert value("inlay_transfer_latency_seconds_sum", **who) > 0
    assert value("inlay_transfer_prediction_error_seconds_total", **who) > 0
    states = {"transport": held.transport, "path": held.name, **who}
    assert value("inlay_transfer_path_state", state="paused", **states) == 1
    assert value("inlay_transfer_path_state", state="ready", **states) == 0
    assert value("inlay_transfer_refused_connections_total", reason="garbage") == 0
    assert value("inlay_transfer_fenced_lanes_total") == 0
    engine.close()
    assert "inlay_transfer_path_state" not in metrics_of(registry)


def test_refused_connections() -> None:
    with TransferEngine(token=TOKEN) as engine:
        with socket.create_connection(("127.0.0.1", engine.port)) as garbage:
            garbage.sendall(b"GET / HTTP/1.1\r\n" * 16)
            with contextlib.suppress(ConnectionResetError):
                assert garbage.recv(1) == b""
        with TransferEngine(token=b"another token than the other") as stranger:
            with pytest.raises(PeerRefusedError):
                stranger.connect(engine.address)
        crowd = [socket.create_connection(("127.0.0.1", engine.port)) for _ in range(70)]
        deadline = time.monotonic() + 5
        wanted = {"garbage": 1, "left": 1, "crowd": 6}
        while wanted.items() > (refused := engine.port_counts().refused).items():
            assert time.monotonic() < deadline, refused
            time.sleep(0.01)
        deadline = time.monotonic() + 5
        while (refused := engine.port_counts().refused)["too_slow"] < 64:
            assert time.monotonic() < deadline, refused
            time.sleep(0.05)
        assert sum(refused.values()) == 1 + 1 + 70
        for one in crowd:
            one.close()
