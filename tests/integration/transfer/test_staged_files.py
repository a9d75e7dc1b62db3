"""Files of this process as the local side: through its buffers, over what reaches the peer."""

import errno
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from inlay.core.errors import (
    EngineClosedError,
    FileTransferError,
    PeerDiedError,
    PeerError,
    SegmentAccessError,
    SegmentClosedError,
    SegmentOverlapError,
    SegmentRangeError,
    StorageFullError,
    TransferCancelledError,
    TransferTimeoutError,
    TransportUnavailableError,
)
from inlay.transfer import Access, Op, Ranges, Transfer, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import SIZE, TOKEN, pattern

MIB = 1 << 20
ENDLESS = 50  # transfers of one batch, of which a test waits for none
WAYS = {"tcp": ["file", "tcp"], "shm": ["file", "shm"], "any": []}


@pytest.fixture(params=WAYS)
def engine(request: pytest.FixtureRequest) -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN, transports=WAYS[request.param]) as engine:
        yield engine


@pytest.fixture
def over_tcp() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN, transports=WAYS["tcp"]) as engine:
        yield engine


def digest(array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> str:
    return hashlib.blake2b(array.tobytes()).hexdigest()


@pytest.mark.parametrize("foreign", [False, True])
def test_exact_bytes(engine: TransferEngine, target: Target, tmp_path: Path, foreign: bool) -> None:
    size = 3 * MIB + 777
    if foreign:  # which over shm its owner fills, from our buffers
        target.tell(f"segments.update(array=np.zeros({size}, np.uint8))")
        target.tell(
            "segments.update(near=engine.register(segments['array'], name='near', "
            "remote=Access.WRITE))"
        )
    else:
        target.tell(
            f"segments.update(near=engine.allocate({size}, name='near', remote=Access.WRITE))"
        )
    near = engine.connect(target.address)["near"]
    file = engine.register_file(tmp_path / "file", size)
    rng = np.random.default_rng(11)
    here, there = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    memory = engine.allocate(size)
    bytes_ = np.frombuffer(memory, np.uint8)
    lengths = [1, 2, 511, 4095, 4096, 4097, 65537, MIB, 2 * MIB + 3]
    for step in range(48):
        length = int(lengths[step % len(lengths)])
        at = int(rng.integers(0, size - length + 1))
        to = int(rng.integers(0, size - length + 1))
        if step % 3 == 0:  # by the plain way, something new
            bytes_[:length] = rng.integers(0, 256, length, dtype=np.uint8)
            engine.write(memory[0:length], file[at : at + length])
            here[at : at + length] = bytes_[:length]
        elif step % 3 == 1:
            engine.write(file[at : at + length], near[to : to + length])
            there[to : to + length] = here[at : at + length]
        else:
            engine.read(file[at : at + length], near[to : to + length])
            here[at : at + length] = there[to : to + length]
    engine.read(memory, near)
    np.testing.assert_array_equal(bytes_, there)
    assert (tmp_path / "file").read_bytes() == here.tobytes()


def test_ranges(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    lengths = rng.integers(1, 40000, 1200)
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    order = rng.permutation(len(lengths))
    places = np.empty_like(starts)
    places[order] = np.cumsum(lengths[order]) - lengths[order]
    file = engine.register_file(tmp_path / "file", total, preallocate=False)
    peer = engine.connect(target.address)
    ranges = {"local_offsets": places, "remote_offsets": starts + 3, "lengths": lengths}
    engine.submit([Ranges(Op.READ, file, peer["source"], **ranges)]).wait()
    engine.submit([Ranges(Op.WRITE, file, peer["sink"], **ranges)]).wait()
    stored, source = np.fromfile(tmp_path / "file", np.uint8), pattern(SIZE)
    for start, place, length in zip(starts, places, lengths, strict=True):
        assert (stored[place : place + length] == source[start + 3 : start + 3 + length]).all()
    assert target.sink_digest(3, total + 3) == digest(source[3 : total + 3])


@pytest.mark.parametrize("way", ["tcp", "any"])
def test_the_peers_file(target: Target, tmp_path: Path, way: str) -> None:
    size = 70 * MIB + 5
    source = pattern(size, seed=3)
    (tmp_path / "ours").write_bytes(source.tobytes())
    target.tell(
        f"segments.update(disk=engine.register_file({str(tmp_path / 'theirs')!r}, {size}, "
        "name='disk', remote=Access.WRITE, preallocate=False))"
    )
    with TransferEngine(token=TOKEN, transports=WAYS[way]) as engine:
        disk = engine.connect(target.address)["disk"]
        engine.write(engine.register_file(tmp_path / "ours"), disk)
        assert digest(np.fromfile(tmp_path / "theirs", np.uint8)) == digest(source)
        again = engine.register_file(tmp_path / "again", size, preallocate=False)
        engine.read(again[5:size], disk[0 : size - 5])
        assert digest(np.fromfile(tmp_path / "again", np.uint8)[5:]) == digest(source[: size - 5])


def test_both_stage_at_once(target: Target, tmp_path: Path) -> None:
    """Who waits for a peer's buffers keeps none that the peer waits for."""
    size = 60 * MIB
    for name in ("ours", "theirs"):
        (tmp_path / name).write_bytes(pattern(size, seed=len(name)).tobytes())
    with TransferEngine(token=TOKEN, transports=WAYS["tcp"]) as engine:
        engine.register_file(tmp_path / "ours", name="disk", remote=Access.READ)
        for path, name in (("theirs", "disk"), ("got", "got")):
            target.tell(
                f"segments.update({name}=engine.register_file({str(tmp_path / path)!r}, {size}, "
                f"name={name!r}, remote=Access.READ))"
            )
        got = engine.register_file(tmp_path / "back", size)
        batch = engine.submit([Transfer(Op.READ, got, engine.connect(target.address)["disk"])])
        target.tell(
            f"engine.read(segments['got'], engine.connect({engine.address!r})['disk'], "
            "deadline_s=60)"
        )
        batch.wait(60)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert (tmp_path / "got").read_bytes() == (tmp_path / "ours").read_bytes()


def test_between_files_of_one_process(tmp_path: Path) -> None:
    size = 9 * MIB + 11
    (tmp_path / "a").write_bytes(pattern(size).tobytes())
    with TransferEngine(token=TOKEN) as engine, TransferEngine(token=TOKEN) as other:
        a, b = engine.register_file(tmp_path / "a"), engine.register_file(tmp_path / "b", size)
        engine.write(a, b)
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        engine.read(b[0 : size - 1], a[1:size])
        assert (tmp_path / "b").read_bytes()[: size - 1] == (tmp_path / "a").read_bytes()[1:]
        engine.write(a[0:MIB], a[MIB : 2 * MIB])
        assert (tmp_path / "a").read_bytes()[MIB : 2 * MIB] == pattern(size)[:MIB].tobytes()
        with pytest.raises(SegmentOverlapError, match="overlap"):
            engine.write(a[0:MIB], a[100 : MIB + 100])
        c = other.register_file(tmp_path / "c", size, name="c", remote=Access.WRITE)
        engine.write(a, engine.connect(other.address)["c"])
        c.deregister()
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


def test_verified(over_tcp: TransferEngine, target: Target, tmp_path: Path) -> None:
    file = over_tcp.register_file(tmp_path / "file", 5 * MIB)
    peer = over_tcp.connect(target.address)
    over_tcp.read(file, peer["source"][7 : 5 * MIB + 7], verify=True)
    over_tcp.write(file, peer["sink"][0 : 5 * MIB], verify=True)
    assert target.sink_digest(0, 5 * MIB) == digest(pattern(SIZE)[7 : 5 * MIB + 7])
    with TransferEngine(token=TOKEN, transports=WAYS["shm"]) as engine:
        file.deregister()
        file = engine.register_file(tmp_path / "file")
        with pytest.raises(TransportUnavailableError, match="verifies"):
            engine.read(file, engine.connect(target.address)["source"][0 : 5 * MIB], verify=True)


def test_access(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(pattern(MIB).tobytes())
    path.chmod(0o400)
    file, peer = engine.register_file(path), engine.connect(target.address)
    with pytest.raises(SegmentAccessError, match="read-only"):
        engine.read(file, peer["source"][0:MIB])
    with pytest.raises(SegmentRangeError):
        engine.write(file[0:MIB], peer["sink"][SIZE - 5 : SIZE + MIB - 5])
    with pytest.raises(SegmentAccessError, match="WRITE"):
        engine.write(file, peer["source"][0:MIB])
    engine.write(file, peer["sink"][0:MIB])
    file.deregister()
    with pytest.raises(SegmentClosedError):
        engine.write(file, peer["sink"][0:MIB])
    file, sink = engine.register_file(path), peer["sink"]
    target.tell("segments['sink'].deregister()")
    with pytest.raises(SegmentClosedError, match="peer has deregistered"):
        engine.write(file, sink[0:MIB])


def test_full_disk(
    engine: TransferEngine, target: Target, small_disk: Path, tmp_path: Path
) -> None:
    file = engine.register_file(small_disk / "file", 8 * MIB, preallocate=False)
    good = engine.register_file(tmp_path / "good", 8 * MIB)
    source = engine.connect(target.address)["source"][0 : 8 * MIB]
    batch = engine.submit([Transfer(Op.READ, file, source), Transfer(Op.READ, good, source)])
    with pytest.raises(StorageFullError, match=str(small_disk / "file")) as caught:
        batch.wait()
    assert caught.value.errno == errno.ENOSPC
    assert batch.status(0).state == "failed" and batch.status(1).state == "done"
    file.deregister()
    assert (tmp_path / "good").read_bytes() == pattern(SIZE)[: 8 * MIB].tobytes()


def test_a_file_that_goes(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = engine.register_file(path, 4 * MIB)
    sink = engine.connect(target.address)["sink"]
    with path.open("r+b") as opened:
        opened.truncate(MIB)
    with pytest.raises(FileTransferError, match="shorter"):
        engine.write(file, sink[0 : 4 * MIB])
    engine.write(file[0:MIB], sink[0:MIB])


def test_a_stopped_peer(
    over_tcp: TransferEngine, target: Target, start_target: Callable[..., Target], tmp_path: Path
) -> None:
    size = 64 * MIB
    other = over_tcp.connect(start_target().address)
    for op in (Op.READ, Op.WRITE):
        file = over_tcp.register_file(tmp_path / "file", size, preallocate=False)
        name = "source" if op is Op.READ else "sink"
        remote = over_tcp.connect(target.address)[name]
        over_tcp.submit([Transfer(op, file[0:MIB], remote[0:MIB])]).wait()
        target.stop()
        begun = time.monotonic()
        batch = over_tcp.submit([Transfer(op, file, remote[0:size])], deadline_s=1)
        over_tcp.read(file, other["source"][0:size], deadline_s=20)  # it kept not all buffers
        over_tcp.write(file, other["sink"][0:size], deadline_s=20)
        with pytest.raises(TransferTimeoutError, match=target.address) as caught:
            batch.wait()
        assert time.monotonic() - begun < 6
        assert batch.status(0).state == "timed_out"
        file.deregister()  # nothing uses it any more
        target.go_on()
        limit = time.monotonic() + 10
        while not batch.settled:
            assert time.monotonic() < limit
            time.sleep(0.01)
        assert caught.value.remote_settled or op is Op.WRITE


def test_cancel(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    file = engine.register_file(tmp_path / "file", SIZE, preallocate=False)
    for op, name in ((Op.READ, "source"), (Op.WRITE, "sink")) * 4:
        for _ in range(50):
            try:
                remote = engine.connect(target.address)[name]
                break
            except PeerError:  # giving up half a frame ends a connection
                time.sleep(0.02)
        batch = engine.submit([Transfer(op, file, remote)] * ENDLESS)
        assert batch.cancel(timeout_s=20)
        with pytest.raises(TransferCancelledError):
            batch.wait()
        assert batch.status(ENDLESS - 1).bytes_done < SIZE
    engine.read(file, engine.connect(target.address)["source"])
    assert digest(np.fromfile(tmp_path / "file", np.uint8)) == digest(pattern(SIZE))


def test_a_killed_peer(
    engine: TransferEngine, start_target: Callable[..., Target], tmp_path: Path
) -> None:
    file = engine.register_file(tmp_path / "file", SIZE, preallocate=False)
    for op, name in ((Op.READ, "source"), (Op.WRITE, "sink")) * 2:
        target = start_target()
        remote = engine.connect(target.address)[name]
        batch = engine.submit([Transfer(op, file, remote)] * ENDLESS)
        target.process.kill()
        with pytest.raises(PeerDiedError, match=target.address):
            batch.wait()
        assert batch.settled
    target = start_target()
    engine.read(file, engine.connect(target.address)["source"])
    assert digest(np.fromfile(tmp_path / "file", np.uint8)) == digest(pattern(SIZE))
    file.deregister()


def test_deregister_and_close_under_use(target: Target, tmp_path: Path) -> None:
    for transports in WAYS.values():
        for op, name in ((Op.READ, "source"), (Op.WRITE, "sink")):
            with TransferEngine(token=TOKEN, transports=transports) as engine:
                file = engine.register_file(tmp_path / "file", SIZE, preallocate=False)
                remote = engine.connect(target.address)[name]
                batch = engine.submit([Transfer(op, file, remote)] * ENDLESS)
                file.deregister(cancel=True)
                with pytest.raises(TransferCancelledError):
                    batch.wait()
                file = engine.register_file(tmp_path / "file")
                batch = engine.submit([Transfer(op, file, remote)] * ENDLESS)
                engine.close()
                with pytest.raises(EngineClosedError):
                    batch.wait()
            with TransferEngine(token=TOKEN) as other:  # the lock on the file went
                other.register_file(tmp_path / "file")


def test_the_peer_deregisters(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    file = engine.register_file(tmp_path / "file", SIZE, preallocate=False)
    sink = engine.connect(target.address)["sink"]
    batch = engine.submit([Transfer(Op.WRITE, file, sink)] * ENDLESS)
    target.tell("segments['sink'].deregister(cancel=True)")
    with pytest.raises(SegmentClosedError):
        batch.wait()
    for _ in range(50):
        try:
            engine.read(file, engine.connect(target.address)["source"])
            break
        except PeerError:
            time.sleep(0.02)
    assert digest(np.fromfile(tmp_path / "file", np.uint8)) == digest(pattern(SIZE))


def test_many_threads(engine: TransferEngine, target: Target, tmp_path: Path) -> None:
    peer = engine.connect(target.address)
    source = pattern(SIZE)
    wrong: list[int] = []

    def work(index: int) -> None:
        rng = np.random.default_rng(index)
        size = 6 * MIB
        with engine.register_file(tmp_path / str(index), size, preallocate=False) as file:
            for _ in range(6):
                at = int(rng.integers(0, SIZE - size))
                engine.read(file, peer["source"][at : at + size], deadline_s=60)
                engine.write(file, peer["sink"][index * size : (index + 1) * size], deadline_s=60)
                if target_digests(index, size) != digest(source[at : at + size]):
                    wrong.append(index)

    asking = threading.Lock()

    def target_digests(index: int, size: int) -> str:
        with asking:
            return target.sink_digest(index * size, (index + 1) * size)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not wrong
