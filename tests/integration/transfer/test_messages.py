"""Messages and notifications: each once, in order, and not before the bytes they speak of."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from inlay.core.errors import (
    ArgumentError,
    EngineClosedError,
    PeerDiedError,
    SegmentClosedError,
    TransferError,
    TransferTimeoutError,
    WaitTimeoutError,
)
from inlay.transfer import Access, Message, Op, Ranges, Transfer, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import TOKEN

RECV = "(lambda m: [m.engine_id, m.topic, m.body.hex(), int(m.notification)])"


def received(target: Target, timeout_s: float = 10) -> Message:
    result = target.tell(f"{RECV}(engine.recv(timeout_s={timeout_s}))")
    return Message(result[0], result[1], bytes.fromhex(result[2]), bool(result[3]))


def test_each_arrives_once_and_in_order(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    for i in range(300):
        peer.send("count", str(i).encode())
    for i in range(300):
        assert received(target) == Message(engine.engine_id, "count", str(i).encode(), False)
    peer.send("", b"")
    assert received(target) == Message(engine.engine_id, "", b"", False)


def test_sizes_and_topics(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    body = np.random.default_rng(0).bytes(256 << 10)
    peer.send("größte", body)
    assert received(target) == Message(engine.engine_id, "größte", body, False)
    peer.send("x" * 255, b"1")
    assert received(target).topic == "x" * 255
    with pytest.raises(ArgumentError, match=r"body: .*262144"):
        peer.send("large", body + b"1")
    with pytest.raises(ArgumentError, match=r"topic: .*255"):
        peer.send("x" * 256, b"")
    with pytest.raises(ArgumentError, match="deadline_s"):
        peer.send("x", b"", deadline_s=0)
    with pytest.raises(ArgumentError, match="timeout_s"):
        engine.recv(timeout_s=-1)


def test_both_directions_and_many_senders(engine: TransferEngine) -> None:
    with TransferEngine(token=TOKEN) as other:
        there, back = engine.connect(other.address), other.connect(engine.address)

        def send(sender: int) -> None:
            for i in range(50):
                there.send(f"sender {sender}", bytes([i]))

        threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
        for thread in threads:
            thread.start()
        seen: dict[str, list[int]] = {}
        for _ in range(200):
            message = other.recv(timeout_s=10)
            seen.setdefault(message.topic, []).append(message.body[0])
        for thread in threads:
            thread.join()
        assert seen == {f"sender {sender}": list(range(50)) for sender in range(4)}
        back.send("answer", b"all there")
        assert engine.recv(timeout_s=10) == Message(other.engine_id, "answer", b"all there", False)
        with pytest.raises(WaitTimeoutError):
            engine.recv(timeout_s=0.05)


@pytest.mark.parametrize("timeout_s", [None, 30])
def test_a_thread_that_receives_ends_with_the_engine(timeout_s: float | None) -> None:
    """While others send, submit, and close."""
    with TransferEngine(token=TOKEN) as other, TransferEngine(token=TOKEN) as engine:
        sink = engine.register(bytearray(4096), name="sink", remote=Access.WRITE)
        there = other.connect(engine.address)
        taken: list[Message] = []
        ended: list[str] = []

        def receive() -> None:
            try:
                while True:
                    taken.append(engine.recv(timeout_s=timeout_s))
            except EngineClosedError:
                ended.append("receive")

        def call(once: Callable[[], None]) -> None:
            try:
                while True:
                    once()
            except TransferError:
                ended.append("call")

        local, remote = other.allocate(sink.size), there["sink"]
        threads = [
            threading.Thread(target=receive),
            threading.Thread(target=call, args=(lambda: there.send("x", b"1"),)),
            threading.Thread(target=call, args=(lambda: other.write(local, remote),)),
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 20
        while len(taken) < 200:
            assert time.monotonic() < end
            time.sleep(0.001)
        engine.close()
        for thread in threads:
            thread.join(20)  # less than a receiver would wait
        assert sorted(ended) == ["call", "call", "receive"]


def test_a_full_peer_takes_more_when_it_receives(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    for i in range(1024):
        peer.send("fill", i.to_bytes(2, "little"))
    begin = time.monotonic()
    with pytest.raises(TransferTimeoutError, match=r"'late'.*recv") as caught:
        peer.send("late", b"", deadline_s=0.2)
    assert 0.2 <= time.monotonic() - begin < 5 and caught.value.peer == target.address
    sender = threading.Thread(target=lambda: peer.send("more", b"", deadline_s=30))
    sender.start()
    topics = [received(target).topic for _ in range(1025)]
    sender.join(30)
    assert topics == ["fill"] * 1024 + ["more"]  # what its sender gave up does not come


@pytest.mark.parametrize("size", [100, 40_000_000])
def test_a_notification_comes_after_the_bytes(
    engine: TransferEngine, target: Target, size: int
) -> None:
    sink = engine.connect(target.address)["sink"]
    data = np.full(size, 1, np.uint8)
    local = engine.register(data)
    for value in range(1, 4):
        data[:] = value
        at = np.arange(0, size, 50, dtype=np.int64)
        batch = engine.submit([Ranges(Op.WRITE, local, sink, at, at, 50)], notify=bytes([value]))
        assert received(target) == Message(engine.engine_id, "", bytes([value]), True)
        total = target.tell(f"int(np.frombuffer(segments['sink'], np.uint8)[:{size}].sum())")
        assert total == value * size
        batch.wait()


def test_all_peers_of_a_batch_are_notified(
    engine: TransferEngine, start_target: Callable[..., Target]
) -> None:
    targets = [start_target() for _ in range(2)]
    local = engine.allocate(1000)
    peers = [engine.connect(target.address) for target in targets]
    transfers = [Transfer(Op.WRITE, local[0:10], peer["sink"][0:10]) for peer in peers * 2]
    engine.submit(transfers, notify=b"both").wait()
    for target, peer in zip(targets, peers, strict=True):
        assert received(target).body == b"both"
        peer.send("then", b"")
        assert received(target).topic == "then"  # and it came once


def test_a_batch_that_fails_does_not_notify(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(1 << 20)
    good, gone = peer["source"][0:100], peer["sink"][0 : 1 << 20]
    target.tell("segments['sink'].deregister()")
    batch = engine.submit(
        [Transfer(Op.READ, local[0:100], good), Transfer(Op.WRITE, local, gone)], notify=b"never"
    )
    with pytest.raises(SegmentClosedError):
        batch.wait()
    peer.send("after", b"")
    assert received(target).topic == "after"
    with pytest.raises(ArgumentError, match="body"):
        engine.submit([Transfer(Op.READ, local[0:100], good)], notify=bytes(1 << 20))


def test_a_peer_that_stops_or_dies(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    target.stop()
    with pytest.raises(TransferTimeoutError, match=target.address):
        peer.send("x", b"", deadline_s=0.1)
    failures: list[BaseException] = []

    def send() -> None:
        try:
            peer.send("x", b"", deadline_s=30)
        except PeerDiedError as error:
            failures.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    target.process.send_signal(signal.SIGKILL)
    sender.join(20)
    assert [error.peer for error in failures] == [target.address]  # type: ignore[attr-defined]
    with pytest.raises(PeerDiedError):
        peer.send("x", b"")


async def test_iteration(engine: TransferEngine) -> None:
    other = TransferEngine(token=TOKEN)
    back = other.connect(engine.address)
    seen = []

    async def receive() -> None:
        async for message in engine.messages():
            seen.append(message.body)

    async with asyncio.timeout(30):
        task = asyncio.create_task(receive())
        for i in range(100):
            await asyncio.to_thread(back.send, "n", bytes([i]))
        while len(seen) < 100:
            await asyncio.sleep(0)
        assert not task.done()
        await asyncio.to_thread(engine.close)
        await task
    assert seen == [bytes([i]) for i in range(100)]
    other.close()


async def test_a_cancelled_receiver_loses_nothing(engine: TransferEngine) -> None:
    with TransferEngine(token=TOKEN) as other:
        back = other.connect(engine.address)
        task = asyncio.create_task(anext(engine.messages()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(back.send, "kept", b"")
        assert engine.recv(timeout_s=5).topic == "kept"


def test_closing_ends_a_receiver(engine: TransferEngine) -> None:
    failures = []

    def receive() -> None:
        try:
            engine.recv(timeout_s=None)
        except EngineClosedError as error:
            failures.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    engine.close()
    thread.join(10)
    assert len(failures) == 1
    with pytest.raises(EngineClosedError):
        engine.recv(timeout_s=1)
