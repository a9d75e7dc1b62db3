"""Peers that die, stop, and come back."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from inlay.core.errors import (
    InlayError,
    PeerDiedError,
    PeerUnreachableError,
    SegmentClosedError,
    TransferCancelledError,
    TransferTimeoutError,
    WaitTimeoutError,
)
from inlay.transfer import Op, Ranges, Transfer, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import pattern

MANY = 64 << 20


def keep_moving(engine: TransferEngine, target: Target, op: Op) -> Callable[[], None]:
    peer = engine.connect(target.address)
    local = engine.allocate(MANY)
    remote = peer["source" if op == Op.READ else "sink"][0:MANY]

    def move() -> None:
        while True:
            engine.submit([Transfer(op, local, remote)], deadline_s=20).wait()

    return move


@pytest.mark.parametrize("op", list(Op))
def test_killed_peer(engine: TransferEngine, target: Target, op: Op) -> None:
    move = keep_moving(engine, target, op)
    killer = threading.Timer(0.2, target.process.kill)
    killer.start()
    begin = time.monotonic()
    with pytest.raises(PeerDiedError, match=target.address) as caught:
        move()
    assert caught.value.peer == target.address
    assert time.monotonic() - begin < 10
    peer_error: type[InlayError] = PeerUnreachableError
    with pytest.raises(peer_error, match=target.address):
        engine.connect(target.address, timeout_s=2)


def test_idle_peer_that_dies_is_noticed(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    remote = peer["source"]
    target.process.kill()
    end = time.monotonic() + 10
    while peer.alive:
        assert time.monotonic() < end
    with pytest.raises(PeerDiedError):
        engine.read(engine.allocate(10), remote[0:10])


def test_other_peers_go_on(engine: TransferEngine, start_target: Callable[..., Target]) -> None:
    dying, living = start_target(), start_target()
    local = engine.allocate(MANY)
    doomed = engine.submit(
        [
            Transfer(Op.READ, local[0:MANY], engine.connect(dying.address)["source"][0:MANY]),
        ]
    )
    dying.process.kill()
    other = engine.allocate(1 << 20)
    remote = engine.connect(living.address)["source"][0 : 1 << 20]
    for _ in range(20):
        engine.read(other, remote)
    np.testing.assert_array_equal(np.frombuffer(other, np.uint8), pattern(1 << 20 << 6)[: 1 << 20])
    try:
        doomed.wait(20)
    except PeerDiedError:
        assert doomed.status(0).state == "failed"
        assert isinstance(doomed.status(0).error, PeerDiedError)


@pytest.mark.parametrize("size", [4096, MANY])
def test_stopped_peer_and_a_read(engine: TransferEngine, target: Target, size: int) -> None:
    peer = engine.connect(target.address)
    remote = peer["source"][0:size]
    local = engine.allocate(size)
    target.stop()
    begin = time.monotonic()
    with pytest.raises(TransferTimeoutError, match="0.3 s") as caught:
        engine.read(local, remote, deadline_s=0.3)
    assert 0.3 <= time.monotonic() - begin < 2
    assert caught.value.peer == target.address and caught.value.remote_settled
    # Nothing of it lands from here on, and the connection is good afterwards.
    view = np.frombuffer(local, np.uint8)
    view[:] = 7
    target.go_on()
    other = engine.allocate(size)
    engine.read(other, remote)
    np.testing.assert_array_equal(np.frombuffer(other, np.uint8), pattern(80 << 20)[:size])
    assert (view == 7).all() and peer.alive


def test_stopped_peer_and_a_small_write(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    local = engine.register(pattern(4096, 1))
    remote = peer["sink"][0:4096]
    engine.write(local, remote)  # without a lease nothing would be sent
    target.stop()
    batch = engine.submit([Transfer(Op.WRITE, local, remote)], deadline_s=0.3)
    with pytest.raises(WaitTimeoutError):
        batch.wait(0.05)
    with pytest.raises(TransferTimeoutError, match="may still land") as caught:
        batch.wait()
    assert not caught.value.remote_settled and not batch.settled
    assert batch.status(0).state == "timed_out"
    # The local memory is free; the answer settles the remote side.
    local.deregister(timeout_s=1)
    target.go_on()
    end = time.monotonic() + 20
    while not batch.settled:
        assert time.monotonic() < end
    assert peer.alive


@pytest.mark.parametrize("size", [4096, MANY])
def test_stopped_peer_and_the_end_of_a_lease(
    engine: TransferEngine, target: Target, size: int
) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(size)
    remote = peer["sink"][0:size]
    data = np.frombuffer(local, np.uint8)
    data[:] = 1
    engine.write(local, remote)
    data[:] = 2
    target.stop()
    batch = engine.submit([Transfer(Op.WRITE, local, remote)], deadline_s=0.2)
    with pytest.raises(TransferTimeoutError):
        batch.wait()
    assert not batch.settled
    # Nobody answers: the lease ends by itself.
    begin = time.monotonic()
    while not batch.settled:
        assert time.monotonic() < begin + 4
    target.go_on()
    # The bytes that wait in the target's socket land no more.
    for _ in range(20):
        assert target.tell(f"int(np.frombuffer(segments['sink'], np.uint8)[:{size}].sum())") == size
        time.sleep(0.02)
    data[:] = 3
    engine.write(local, remote)
    assert peer.alive
    total = target.tell(f"int(np.frombuffer(segments['sink'], np.uint8)[:{size}].sum())")
    assert total == 3 * size


def test_stopped_peer_goes_on_with_a_write(engine: TransferEngine, target: Target) -> None:
    local = engine.register(pattern(MANY, 1))
    remote = engine.connect(target.address)["sink"][0:MANY]
    batch = engine.submit([Transfer(Op.WRITE, local, remote)])
    target.stop()
    with pytest.raises(WaitTimeoutError):
        batch.wait(11.5)  # past the lease; past the time after which a machine is given up, too
    target.go_on()
    batch.wait(20)
    total = target.tell(f"int(np.frombuffer(segments['sink'], np.uint8)[:{MANY}].sum())")
    assert total == int(pattern(MANY, 1).sum())


def test_stopped_peer_and_a_large_write(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    data = np.full(MANY, 1, np.uint8)
    local = engine.register(data)
    remote = peer["sink"][0:MANY]
    engine.write(local, remote)  # without a lease nothing would be sent
    target.stop()
    begin = time.monotonic()
    batch = engine.submit([Transfer(Op.WRITE, local, remote)], deadline_s=0.3)
    with pytest.raises(TransferTimeoutError) as caught:
        batch.wait()
    assert time.monotonic() - begin < 2
    assert not caught.value.remote_settled and not batch.settled and peer.alive
    target.go_on()
    # The lane that was given up is shut over another one, and then nothing of it lands any more.
    end = time.monotonic() + 20
    while not batch.settled:
        assert time.monotonic() < end
    data[:] = 2
    engine.write(local, remote)
    assert_sink_stays(target, 2)


def assert_sink_stays(target: Target, value: int) -> None:
    before = target.sink_digest(0, MANY)
    for _ in range(5):
        assert target.sink_digest(0, MANY) == before
    total = target.tell(f"int(np.frombuffer(segments['sink'], np.uint8)[:{MANY}].sum())")
    assert total == value * MANY


def test_stopped_peer_and_many_large_writes(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    data = np.full(MANY, 1, np.uint8)
    local = engine.register(data)
    remote = peer["sink"][0:MANY]
    engine.write(local, remote)  # without a lease nothing would be sent
    target.stop()
    batches = [
        engine.submit([Transfer(Op.WRITE, local, remote)], deadline_s=0.2 + i / 10)
        for i in range(4)
    ]
    for batch in batches:
        with pytest.raises(TransferTimeoutError):
            batch.wait()
    assert not all(batch.settled for batch in batches) and peer.alive
    target.go_on()
    # Lanes come back, and over them the peer shuts those that were given up.
    end = time.monotonic() + 20
    while not all(batch.settled for batch in batches):
        assert time.monotonic() < end
    data[:] = 2
    engine.write(local, remote)
    assert_sink_stays(target, 2)


@pytest.mark.parametrize("op", list(Op))
def test_cancel(engine: TransferEngine, target: Target, op: Op) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(MANY)
    remote = peer["source" if op == Op.READ else "sink"][0:MANY]
    cancelled = 0
    for _ in range(10):
        batch = engine.submit([Transfer(op, local, remote)])
        assert batch.cancel()
        assert batch.done and batch.settled
        if batch.status(0).state == "cancelled":
            cancelled += 1
            with pytest.raises(TransferCancelledError) as caught:
                batch.wait()
            assert caught.value.remote_settled
            assert isinstance(batch.status(0).error, TransferCancelledError)
        engine.submit([Transfer(op, local, remote)]).wait()
        assert batch.cancel()  # again, and late: nothing happens
    assert cancelled >= 5 and peer.alive


def test_cancel_of_a_write_to_a_stopped_peer(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(4096)
    remote = peer["sink"][0:4096]
    engine.write(local, remote)  # without a lease nothing would be sent
    target.stop()
    batch = engine.submit([Transfer(Op.WRITE, local, remote)])
    begin = time.monotonic()
    assert not batch.cancel(timeout_s=0.2)
    assert 0.2 <= time.monotonic() - begin < 2
    assert batch.done


def test_deregistration_at_the_target(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    remote = peer["sink"]
    target.tell("segments['sink'].deregister()")
    local = engine.allocate(1 << 20)
    for size in (10, 1 << 20):
        with pytest.raises(SegmentClosedError, match="'sink'"):
            engine.write(local[0:size], remote[0:size])
    target.tell("segments.update(sink=engine.allocate(1 << 20, name='sink', remote=Access.WRITE))")
    again = peer["sink"]  # the closed one is not remembered
    engine.write(local, again)
    with pytest.raises(SegmentClosedError):
        engine.write(local, remote[0 : 1 << 20])  # another epoch of the same slot


def test_local_deregistration(engine: TransferEngine, target: Target) -> None:
    remote = engine.connect(target.address)["source"][0:MANY]
    local = engine.allocate(MANY)
    target.stop()
    batch = engine.submit([Transfer(Op.READ, local, remote)])
    with pytest.raises(WaitTimeoutError, match="still in use"):
        local.deregister(timeout_s=0.1)
    with pytest.raises(SegmentClosedError):
        engine.submit([Transfer(Op.READ, local, remote)])
    local.deregister(cancel=True)
    with pytest.raises(TransferCancelledError):
        batch.wait()
    assert not local.registered


def test_many_ranges_and_a_killed_peer(engine: TransferEngine, target: Target) -> None:
    remote = engine.connect(target.address)["source"]
    local = engine.allocate(MANY)
    at = np.arange(0, MANY, 8192, dtype=np.int64)
    ranges = Ranges(Op.READ, local, remote, at, at[::-1].copy(), 8192)
    target.stop()
    batch = engine.submit([ranges])
    target.process.kill()
    with pytest.raises(PeerDiedError, match=target.address):
        batch.wait(20)
