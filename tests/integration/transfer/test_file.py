"""Files as segments of this process: the right bytes, and what goes wrong with disks."""

import errno
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inlay.core.errors import (
    ArgumentError,
    EngineClosedError,
    FileTransferError,
    SegmentAccessError,
    SegmentClosedError,
    SegmentNotFoundError,
    SegmentOverlapError,
    SegmentRangeError,
    StorageFullError,
    TransferCancelledError,
    TransferTimeoutError,
    TransportUnavailableError,
)
from inlay.transfer import Access, Op, Ranges, Transfer, TransferEngine
from tests.integration.transfer.conftest import ROOT
from tests.integration.transfer.target import TOKEN, pattern

MIB = 1 << 20
ENDLESS = 200  # transfers of one batch, of which a test waits for none


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN) as engine:
        yield engine


@pytest.fixture(params=["disk", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """On a disk, which takes direct moves, and on tmpfs."""
    if request.param == "disk":
        yield tmp_path
        return
    path = Path(f"/dev/shm/inlay-test-{os.getpid()}")
    path.mkdir()
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def test_exact_bytes(engine: TransferEngine, directory: Path) -> None:
    rng = np.random.default_rng(5)
    size = 3 * MIB + 777
    file = engine.register_file(directory / "file", size)
    memory = engine.allocate(size + 5000)
    bytes_ = np.frombuffer(memory, np.uint8)
    model = np.zeros(size, np.uint8)
    lengths = [1, 2, 511, 4095, 4096, 4097, 65537, MIB, 2 * MIB + 3]
    for step in range(120):
        length = int(lengths[step % len(lengths)])
        offset = int(rng.integers(0, size - length + 1))
        if step % 3 == 0:
            offset = offset // 4096 * 4096
        near = int(rng.integers(0, 5000)) if step % 2 else offset % 4096
        view = bytes_[near : near + length]
        if step % 4 < 2:
            view[:] = rng.integers(0, 256, length, dtype=np.uint8)
            model[offset : offset + length] = view
            engine.write(memory[near : near + length], file[offset : offset + length])
        else:
            bytes_[:] = 0x5A
            engine.read(memory[near : near + length], file[offset : offset + length])
            np.testing.assert_array_equal(view, model[offset : offset + length])
            assert (bytes_[:near] == 0x5A).all() and (bytes_[near + length :] == 0x5A).all()
    assert (directory / "file").read_bytes() == model.tobytes()
    assert (directory / "file").stat().st_mode & 0o7777 == 0o600


def test_ranges_in_foreign_memory(engine: TransferEngine, directory: Path) -> None:
    rng = np.random.default_rng(6)
    lengths = rng.integers(1, 9000, 1500)
    starts = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    source = pattern(total)
    order = rng.permutation(len(lengths))
    places = np.empty_like(starts)
    places[order] = np.cumsum(lengths[order]) - lengths[order]
    with (
        engine.register(source) as near,
        engine.register_file(directory / "file", total + 9, preallocate=False) as file,
    ):
        ranges = {"local_offsets": starts, "remote_offsets": places + 9, "lengths": lengths}
        engine.submit([Ranges(Op.WRITE, near, file, **ranges)]).wait()
        again = np.zeros(total, np.uint8)
        with engine.register(again) as back:
            engine.submit([Ranges(Op.READ, back, file, **ranges)]).wait()
        np.testing.assert_array_equal(again, source)
    stored = np.fromfile(directory / "file", np.uint8)
    for start, place, length in zip(starts, places, lengths, strict=True):
        assert (stored[place + 9 : place + 9 + length] == source[start : start + length]).all()


def test_neighbours_share_blocks(engine: TransferEngine, directory: Path) -> None:
    size, threads = 2 * MIB, 4
    file = engine.register_file(directory / "file", size)
    memory = engine.register(source := pattern(size))
    cuts = np.sort(np.random.default_rng(7).choice(size, 400, replace=False)).tolist()
    pieces = list(zip([0, *cuts], [*cuts, size], strict=True))

    def write(first: int) -> None:
        for start, stop in pieces[first::threads]:
            engine.write(memory[start:stop], file[start:stop])

    workers = [threading.Thread(target=write, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (directory / "file").read_bytes() == source.tobytes()


def test_sizes(engine: TransferEngine, directory: Path) -> None:
    path = directory / "file"
    with engine.register_file(path, 3 * MIB) as file:
        assert file.size == 3 * MIB and path.stat().st_blocks * 512 >= 3 * MIB
    path.write_bytes(b"x" * 5000)
    with engine.register_file(os.fsencode(path).decode(), name="as it is") as file:
        assert file.size == 5000
    with engine.register_file(path, 100) as file:
        assert file.size == 100
        with pytest.raises(SegmentRangeError):
            engine.read(engine.allocate(101), file[0:101])
    with engine.register_file(path, 1 << 34, preallocate=False):
        assert path.stat().st_size == 1 << 34 and path.stat().st_blocks * 512 < MIB
    with path.open("rb") as stored:
        assert stored.read(5001) == b"x" * 5000 + b"\0"


def test_who_has_the_file(engine: TransferEngine, directory: Path) -> None:
    path = directory / "file"
    with TransferEngine(token=TOKEN) as other:
        with engine.register_file(path, 4096):
            for second in (engine, other):
                with pytest.raises(SegmentOverlapError, match=str(path)):
                    second.register_file(path)
        with other.register_file(path):
            pass
        other.register_file(path)
    engine.register_file(path)  # closing let it go


def test_a_forked_child_does_not_have_it(directory: Path) -> None:
    with TransferEngine(token=TOKEN) as engine:
        file = engine.register_file(directory / "file", MIB)
        engine.write(engine.register(pattern(MIB)), file)
        ready, said = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                try:
                    engine.read(engine.allocate(10), file[0:10])
                except EngineClosedError:
                    os.write(said, b"closed")
                select.select([], [], [], 20)
            finally:
                os._exit(0)
        assert os.read(ready, 10) == b"closed"
        again = engine.allocate(MIB)
        engine.read(again, file)
        assert bytes(again) == pattern(MIB).tobytes()
    try:
        with TransferEngine(token=TOKEN) as engine:
            engine.register_file(directory / "file")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(said)


def test_engine_without_the_transport(tmp_path: Path) -> None:
    with TransferEngine(token=TOKEN, transports=["tcp"]) as engine:
        with pytest.raises(TransportUnavailableError, match="needs transport file: not among"):
            engine.register_file(tmp_path / "file", 10)
    assert not (tmp_path / "file").exists()


def test_no_such_file(engine: TransferEngine, directory: Path) -> None:
    path = directory / "none"
    with pytest.raises(FileTransferError, match=str(path)) as caught:
        engine.register_file(path)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(FileTransferError):
        engine.register_file(path / "below", 10)
    for wrong in (directory, "/dev/null", ""):
        with pytest.raises(ArgumentError, match="path"):
            engine.register_file(wrong, 10)
    for size in (0, -1):
        with pytest.raises(ArgumentError, match="size"):
            engine.register_file(path, size)
    with pytest.raises(ArgumentError, match="name"):
        engine.register_file(path, 10, name="x" * 300)
    assert not path.exists()


def test_read_only_file(engine: TransferEngine, directory: Path) -> None:
    path = directory / "file"
    path.write_bytes(pattern(9000).tobytes())
    path.chmod(0o400)
    with pytest.raises(SegmentAccessError, match=str(path)):
        engine.register_file(path, remote=Access.WRITE)
    with pytest.raises(SegmentAccessError, match="9000"):
        engine.register_file(path, 9001)
    file = engine.register_file(path)
    memory = engine.allocate(9000)
    with pytest.raises(SegmentAccessError):
        engine.write(memory, file)
    engine.read(memory, file)
    assert bytes(memory) == path.read_bytes() == pattern(9000).tobytes()


def test_a_file_is_no_memory(engine: TransferEngine, directory: Path) -> None:
    file = engine.register_file(directory / "file", 4096, name="mine", remote=Access.NONE)
    with pytest.raises(SegmentOverlapError, match="mine"):
        engine.read(file, file)
    with pytest.raises(BufferError):
        memoryview(file)
    with pytest.raises(SegmentNotFoundError):  # as others see it
        engine.connect(engine.address)["mine"]


def test_full_disk(engine: TransferEngine, small_disk: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageFullError, match=f"{small_disk}.*{2 * MIB} bytes.*{MIB}") as caught:
        engine.register_file(small_disk / "large", 2 * MIB)
    assert caught.value.errno == errno.ENOSPC and not (small_disk / "large").exists()
    memory = engine.register(source := pattern(2 * MIB))
    sparse = engine.register_file(small_disk / "sparse", 2 * MIB, preallocate=False)
    good = engine.register_file(tmp_path / "good", 2 * MIB)
    batch = engine.submit([Transfer(Op.WRITE, memory, sparse), Transfer(Op.WRITE, memory, good)])
    with pytest.raises(StorageFullError, match=str(small_disk / "sparse")) as caught:
        batch.wait()
    assert caught.value.errno == errno.ENOSPC
    assert batch.status(0).state == "failed" and batch.status(1).state == "done"
    assert (tmp_path / "good").read_bytes() == source.tobytes()
    sparse.deregister()
    (small_disk / "sparse").unlink()
    engine.write(memory[: MIB // 2], engine.register_file(small_disk / "now", MIB // 2))


def test_size_limit_of_the_process(tmp_path: Path) -> None:
    code = f"""
import resource
from inlay.core.errors import StorageFullError
from inlay.transfer import TransferEngine
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with TransferEngine(token=b"x" * 16) as engine:
    for preallocate in (True, False):
        try:
            engine.register_file({str(tmp_path / "file")!r}, 200_000, preallocate=preallocate)
        except StorageFullError as error:
            print(error.errno)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert (run.returncode, run.stdout.split()) == (0, [str(errno.EFBIG)] * 2), run.stderr


def test_a_file_that_goes(engine: TransferEngine, directory: Path) -> None:
    path = directory / "file"
    file = engine.register_file(path, MIB)
    memory = engine.allocate(MIB)
    os.truncate(path, 5000)
    with pytest.raises(FileTransferError, match="shorter") as caught:
        engine.read(memory, file)
    assert str(path) in str(caught.value)
    engine.read(memory[0:5000], file[0:5000])
    path.unlink()
    engine.write(memory, file)
    engine.read(memory, file)


def test_cancel_and_deadline(engine: TransferEngine, tmp_path: Path) -> None:
    size = 256 * MIB
    file = engine.register_file(tmp_path / "file", size, preallocate=False)
    memory = engine.allocate(size)
    for op in (Op.READ, Op.WRITE):
        batch = engine.submit([Transfer(op, memory, file)] * ENDLESS)
        assert batch.cancel(timeout_s=20)
        with pytest.raises(TransferCancelledError):
            batch.wait()
        assert batch.status(ENDLESS - 1).bytes_done < size
        with pytest.raises(TransferTimeoutError) as caught:
            engine.submit([Transfer(op, memory, file)] * ENDLESS, deadline_s=0.01).wait()
        assert str(engine.address) in str(caught.value)
    np.frombuffer(memory, np.uint8)[:100] = 7
    engine.write(memory[0:100], file[5:105])
    engine.read(memory[200:300], file[5:105])
    assert bytes(memory)[200:300] == b"\7" * 100


def test_deregister_under_use(engine: TransferEngine, tmp_path: Path) -> None:
    size = 128 * MIB
    memory = engine.allocate(size)
    for cancel in (False, True):
        file = engine.register_file(tmp_path / "file", size, preallocate=False)
        batch = engine.submit([Transfer(Op.WRITE, memory, file)] * ENDLESS)
        file.deregister(cancel=cancel)
        with pytest.raises((SegmentClosedError, TransferCancelledError)):
            batch.wait()
        engine.register_file(tmp_path / "file").deregister()


def test_close_under_use(tmp_path: Path) -> None:
    for op in (Op.READ, Op.WRITE) * 3:
        engine = TransferEngine(token=TOKEN)
        file = engine.register_file(tmp_path / "file", 128 * MIB, preallocate=False)
        batch = engine.submit([Transfer(op, engine.allocate(128 * MIB), file)] * ENDLESS)
        engine.close()
        assert batch.done
        with pytest.raises(EngineClosedError):
            batch.wait()
