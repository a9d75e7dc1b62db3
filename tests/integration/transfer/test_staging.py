"""Files of another process: read and written through their owner, in order, and at its end."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from inlay.core.errors import (
    FileTransferError,
    PeerDiedError,
    PeerError,
    SegmentAccessError,
    SegmentClosedError,
    SegmentRangeError,
    StorageFullError,
    TransferTimeoutError,
)
from inlay.transfer import Op, RemoteSegment, Transfer, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import SIZE, TOKEN, pattern

MIB = 1 << 20
ENDLESS = 50  # transfers of one batch, of which a test waits for none


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN, transports=["file", "tcp"]) as engine:
        yield engine


def offer(target: Target, path: Path, size: int, *, write: bool = True, **more: object) -> None:
    arguments = "".join(f", {name}={value!r}" for name, value in more.items())
    access = "WRITE" if write else "READ"
    target.tell(
        f"segments.update(disk=engine.register_file({str(path)!r}, {size}, name='disk', "
        f"remote=Access.{access}{arguments}))"
    )


def disk_of(engine: TransferEngine, target: Target) -> RemoteSegment:
    return engine.connect(target.address)["disk"]


@pytest.mark.parametrize("verify", [False, True])
def test_exact_bytes(engine: TransferEngine, target: Target, tmp_path: Path, verify: bool) -> None:
    size = 5 * MIB + 321
    offer(target, tmp_path / "file", size)
    disk = disk_of(engine, target)
    rng = np.random.default_rng(8)
    model = np.zeros(size, np.uint8)
    memory = engine.allocate(size)
    bytes_ = np.frombuffer(memory, np.uint8)
    for step, length in enumerate([1, 4095, 4096, 4097, 65536, 65537, MIB, 3 * MIB + 1, size] * 3):
        at = int(rng.integers(0, size - length + 1))
        near = int(rng.integers(0, size - length + 1))
        if step % 2:
            bytes_[:] = 0
            engine.read(memory[near : near + length], disk[at : at + length], verify=verify)
            expected = np.zeros(size, np.uint8)
            expected[near : near + length] = model[at : at + length]
            np.testing.assert_array_equal(bytes_, expected)
        else:
            bytes_[near : near + length] = rng.integers(0, 256, length, dtype=np.uint8)
            model[at : at + length] = bytes_[near : near + length]
            engine.write(memory[near : near + length], disk[at : at + length], verify=verify)
    assert (tmp_path / "file").read_bytes() == model.tobytes()


def test_memory_and_disk_in_one_batch(
    engine: TransferEngine, target: Target, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(pattern(SIZE, seed=1).tobytes())
    offer(target, tmp_path / "file", SIZE, write=False)
    peer = engine.connect(target.address)
    count, step = 40, SIZE // 40
    memory = engine.allocate(2 * SIZE)
    engine.submit(
        [
            Transfer(
                Op.READ,
                memory[(2 * i + j) * step : (2 * i + j + 1) * step],
                peer[name][i * step : (i + 1) * step],
            )
            for i in range(count)
            for j, name in enumerate(("source", "disk"))
        ]
    ).wait()
    got = np.frombuffer(memory, np.uint8)[: 2 * count * step].reshape(count, 2, step)
    np.testing.assert_array_equal(got[:, 0].ravel(), pattern(SIZE)[: count * step])
    np.testing.assert_array_equal(got[:, 1].ravel(), pattern(SIZE, seed=1)[: count * step])


def test_many_initiators_share_the_buffers(target: Target, tmp_path: Path) -> None:
    size, count = 24 * MIB, 5
    offer(target, tmp_path / "file", size * count, preallocate=False)
    engines = [TransferEngine(token=TOKEN) for _ in range(count)]
    wrong: list[int] = []

    def work(index: int) -> None:
        engine = engines[index]
        disk = disk_of(engine, target)
        mine = slice(index * size, (index + 1) * size)
        with engine.register(pattern(size, seed=index)) as source:
            engine.write(source, disk[mine])
        again = engine.allocate(size)
        engine.read(again, disk[mine])
        if bytes(again) != pattern(size, seed=index).tobytes():
            wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
    for engine in engines:
        engine.close()


def test_access(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    offer(target, tmp_path / "file", 8192, write=False)
    disk = disk_of(engine, target)
    memory = engine.allocate(8192)
    with pytest.raises(SegmentAccessError):
        engine.write(memory, disk)
    with pytest.raises(SegmentRangeError):
        engine.read(memory, disk[1:8193])
    engine.read(memory, disk)
    target.tell("segments['disk'].deregister()")
    with pytest.raises(SegmentClosedError):
        engine.read(memory, disk)


def test_full_disk_of_the_peer(engine: TransferEngine, target: Target, small_disk: Path) -> None:
    offer(target, small_disk / "file", 4 * MIB, preallocate=False)
    peer = engine.connect(target.address)
    memory = engine.register(pattern(4 * MIB))
    batch = engine.submit(
        [
            Transfer(Op.WRITE, memory, peer["disk"]),
            Transfer(Op.WRITE, memory, peer["sink"][: 4 * MIB]),
        ]
    )
    with pytest.raises(StorageFullError, match=f"'disk' of peer {target.address}"):
        batch.wait()
    assert batch.status(1).state == "done" and peer.alive
    target.tell("segments['disk'].deregister()")


def test_the_peers_file_goes(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    offer(target, tmp_path / "file", MIB)
    os.truncate(tmp_path / "file", 4096)
    memory = engine.allocate(MIB)
    disk = disk_of(engine, target)
    with pytest.raises(FileTransferError):
        engine.read(memory, disk)
    engine.read(memory[0:4096], disk[0:4096])


def test_deadline_and_cancel(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    size = 64 * MIB
    offer(target, tmp_path / "file", size, preallocate=False)
    disk = disk_of(engine, target)
    memory = engine.allocate(size)
    for op in (Op.READ, Op.WRITE):
        target.stop()
        begun = time.monotonic()
        with pytest.raises(TransferTimeoutError, match=target.address):
            engine.submit([Transfer(op, memory, disk)], deadline_s=0.3).wait()
        assert time.monotonic() - begun < 3
        target.go_on()
        assert engine.submit([Transfer(op, memory, engine_disk(engine, target))]).cancel(
            timeout_s=20
        )
        disk = engine_disk(engine, target)
        engine.read(memory[0:10], disk[0:10])


def engine_disk(engine: TransferEngine, target: Target) -> RemoteSegment:
    """Of a living connection: giving up half a frame ends one."""
    for _ in range(50):
        try:
            return disk_of(engine, target)
        except PeerError:
            time.sleep(0.02)
    return disk_of(engine, target)


def test_deregister_under_use(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    size = 64 * MIB
    memory = engine.allocate(size)
    for op in (Op.READ, Op.WRITE):
        offer(target, tmp_path / "file", size, preallocate=False)
        batch = engine.submit([Transfer(op, memory, disk_of(engine, target))] * ENDLESS)
        target.tell("segments['disk'].deregister(cancel=True)")
        with pytest.raises(SegmentClosedError):
            batch.wait()
        memory_again = engine.allocate(100)
        engine.read(memory_again, engine.connect(target.address)["source"][0:100])
        assert bytes(memory_again) == pattern(SIZE)[:100].tobytes()


def test_a_killed_owner(
    engine: TransferEngine, start_target: Callable[..., Target], tmp_path: Path
) -> None:
    size = 64 * MIB
    memory = engine.allocate(size)
    for op in (Op.READ, Op.WRITE):
        target = start_target()
        offer(target, tmp_path / "file", size, preallocate=False)
        batch = engine.submit([Transfer(op, memory, disk_of(engine, target))] * ENDLESS)
        target.process.kill()
        with pytest.raises(PeerDiedError, match=target.address):
            batch.wait()
        target.process.wait(20)
    with engine.register_file(tmp_path / "file") as file:  # the lock went with its process
        assert file.size == size
