"""Named files of tmpfs as segments: peers map them, and the next process finds what they held."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inlay.core.errors import ArgumentError, PeerDiedError
from inlay.transfer import Access, TransferConfig, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import TOKEN, pattern

FILE_BYTES = 8 << 20


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN, transports=["shm"], config=TransferConfig()) as engine:
        yield engine


@pytest.fixture
def path() -> Iterator[Path]:
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs /dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="inlay-test-", dir="/dev/shm"))
    path = directory / "memory"
    path.touch(0o600)
    os.truncate(path, FILE_BYTES)
    yield path
    shutil.rmtree(directory)


def register(target: Target, path: Path) -> None:
    file = f"engine._native.register_shared_file({str(path)!r}, 'file', 2)"
    target.tell(f"segments.update(file={file})")


def test_the_next_process_finds_what_peers_wrote(
    engine: TransferEngine, start_target: Callable[..., Target], path: Path
) -> None:
    data = pattern(FILE_BYTES, seed=5)
    local = engine.register(data, remote=Access.NONE)
    first = start_target()
    register(first, path)
    peer = engine.connect(first.address)
    engine.write(local, peer["file"])
    assert path.read_bytes() == data.tobytes()
    second = start_target()
    with pytest.raises(AssertionError, match="the target ended"):
        register(second, path)  # it is locked, and says so on its standard error
    assert sum(one.written_bytes for one in engine.paths()) == FILE_BYTES  # all by shm
    first.end()
    with pytest.raises(PeerDiedError):
        engine.write(local, peer["file"])
    third = start_target()  # while this process still maps the file for the first
    register(third, path)
    back = engine.allocate(FILE_BYTES, remote=Access.NONE)
    engine.read(back, engine.connect(third.address)["file"])
    assert bytes(memoryview(back)) == data.tobytes()


def test_files_that_peers_would_not_map_are_refused(
    engine: TransferEngine, path: Path, tmp_path: Path
) -> None:
    native = engine._native
    path.chmod(0o640)
    with pytest.raises(ArgumentError, match="of this user alone"):
        native.register_shared_file(str(path), None, 2)
    path.chmod(0o600)
    os.truncate(path, 0)
    with pytest.raises(ArgumentError, match="has no bytes"):
        native.register_shared_file(str(path), None, 2)
    with pytest.raises(ArgumentError, match="No such file"):
        native.register_shared_file(str(path) + ".not", None, 2)
    os.truncate(path, 4096)
    held = native.register_shared_file(str(path), "held", 0)
    with pytest.raises(ArgumentError, match="locked"):
        native.register_shared_file(str(path), "again", 0)
    assert len(memoryview(held)) == 4096
