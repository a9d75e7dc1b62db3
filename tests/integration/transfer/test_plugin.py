"""A transport from another package, built and installed as its users do it."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from inlay.core.errors import (
    ArgumentError,
    PeerDiedError,
    TransferTimeoutError,
    TransportUnavailableError,
)
from inlay.transfer import Access, Op, Ranges, Transfer, TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import SIZE, TOKEN, pattern
from tests.support.tree import ROOT

NAME = "unix-socket"
EXAMPLE = ROOT / "examples/transport_plugin"
LOOPBACK = "127.0.0.1:0"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example is installed: what PYTHONPATH has to name."""
    pytest.importorskip("scikit_build_core")
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source = tmp_path_factory.mktemp("source") / "transport_plugin"
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)
    result = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps",
         "--no-index", "--disable-pip-version-check", "--target", site, source,
         f"-Ccmake.define.INLAY_INCLUDE={ROOT / 'native/include'}"],
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return site


@pytest.fixture
def _installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setenv("PYTHONPATH", str(package))


@pytest.fixture
def target(start_target: Callable[..., Target], _installed: None) -> Target:
    return start_target(LOOPBACK, NAME)


@pytest.fixture
def engine(_installed: None) -> Iterator[TransferEngine]:
    with TransferEngine(token=TOKEN, transports=[NAME]) as engine:
        yield engine


def bytes_moved(engine: TransferEngine) -> dict[str, int]:
    moved: dict[str, int] = {}
    for path in engine.paths():
        moved[path.transport] = moved.get(path.transport, 0) + path.read_bytes + path.written_bytes
    return moved


def test_moves_bytes(engine: TransferEngine, target: Target) -> None:
    assert engine.transports[NAME] is None
    peer = engine.connect(target.address)
    local = engine.allocate(SIZE)
    ours = np.frombuffer(local, np.uint8)
    engine.read(local, peer["source"])
    np.testing.assert_array_equal(ours, pattern(SIZE))
    engine.write(local[1:100_001], peer["sink"][7:100_007])
    digest = blake2b(ours[1:100_001]).hexdigest()
    assert target.sink_digest(7, 100_007) == digest

    # Small pieces in both directions, in one submission.
    offsets = np.arange(3000, dtype=np.int64) * 4096
    ours[: 16 << 20] = 0
    engine.submit(
        [
            Ranges(Op.READ, local, peer["source"], offsets, offsets[::-1].copy(), 4000),
            Transfer(Op.WRITE, local[64 << 20 :], peer["sink"][: 16 << 20]),
        ]
    ).wait()
    source = pattern(SIZE)
    for here, there in zip(offsets, offsets[::-1], strict=True):
        a, b = int(here), int(there)
        assert (ours[a : a + 4000] == source[b : b + 4000]).all()
    digest = blake2b(ours[64 << 20 :]).hexdigest()
    assert target.sink_digest(0, 16 << 20) == digest
    assert set(bytes_moved(engine)) == {NAME}


@pytest.mark.usefixtures("_installed")
def test_is_one_of_many(start_target: Callable[..., Target]) -> None:
    """Without a choice it is loaded, and used only where nothing better reaches."""
    target = start_target()
    with TransferEngine(token=TOKEN) as engine:
        assert engine.transports[NAME] is None
        peer = engine.connect(target.address)
        local = engine.allocate(1 << 20)
        engine.read(local, peer["source"][: 1 << 20])
        moved = bytes_moved(engine)
        assert moved["shm"] >= 1 << 20
        assert moved[NAME] == 0
        # When those that are better are out of use, it takes over.
        for path in engine.paths():
            if path.transport in ("shm", "tcp"):
                engine.pause(path)
        engine.write(local, peer["sink"][: 1 << 20])
        assert bytes_moved(engine)[NAME] == 1 << 20


def test_killed_peer(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(SIZE)
    source = peer["source"]
    target.stop()  # none of them is done when it is killed
    batches = [engine.submit([Transfer(Op.READ, local, source)]) for _ in range(8)]
    target.process.send_signal(signal.SIGKILL)
    for batch in batches:
        begin = time.monotonic()
        with pytest.raises(PeerDiedError, match=target.address):
            batch.wait(timeout_s=5)
        assert time.monotonic() - begin < 2
    assert not peer.alive


def test_given_up_writes_are_fenced_and_the_path_comes_back(
    engine: TransferEngine, target: Target
) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(SIZE)
    ours = np.frombuffer(local, np.uint8)
    ours[:] = 7
    sink = peer["sink"]
    engine.write(local[:4096], sink[:4096])
    target.stop()
    batch = engine.submit([Transfer(Op.WRITE, local, sink)], deadline_s=0.3)
    with pytest.raises(TransferTimeoutError) as late:
        batch.wait(timeout_s=5)
    assert late.value.remote_settled is False
    ours[:] = 9
    target.go_on()
    end = time.monotonic() + 5
    while not batch.settled and time.monotonic() < end:
        time.sleep(0.005)
    assert batch.settled
    # What is written now stays: the lost connection lands nothing more.
    engine.write(local, sink)
    digest = blake2b(ours).hexdigest()
    assert target.sink_digest(0, SIZE) == digest


def test_deregistered_while_used(engine: TransferEngine, target: Target) -> None:
    peer = engine.connect(target.address)
    local = engine.allocate(SIZE)
    batch = engine.submit([Transfer(Op.WRITE, local, peer["sink"])])
    target.tell("segments['sink'].deregister()")
    with pytest.raises(Exception, match="sink"):
        batch.wait(timeout_s=5)
        engine.write(local[:4096], peer["sink"][:4096])
    engine.read(local[:4096], peer["source"][:4096])


def fake_package(folder: Path, name: str, code: str, value: str) -> None:
    (folder / f"{name}_plugin.py").write_text(code)
    metadata = folder / f"{name}_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}_plugin\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(f"[inlay.transports]\n{name} = {value}\n")


def test_bad_packages_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(Path("/lib").glob("x86_64-linux-gnu/libm.so.6"), None)
    cases = {
        "raises": ("def library():\n    raise RuntimeError('no such luck')\n", "no such luck"),
        "imports": ("import not_there_at_all\n", "not_there_at_all"),
        "relative": ("library = 'plugin.so'\n", "no absolute path"),
        "absent": ("library = '/nonexistent/plugin.so'\n", "/nonexistent/plugin.so"),
        "tcp": ("library = '/nonexistent/plugin.so'\n", None),
    }
    if other is not None:
        cases["foreign"] = (f"library = {str(other)!r}\n", "does not export inlay_transport_plugin")
    for name, (code, _) in cases.items():
        fake_package(tmp_path, name, code, f"{name}_plugin:library")
    monkeypatch.syspath_prepend(str(tmp_path))
    with TransferEngine(token=TOKEN) as engine:
        problems = engine.transports
        assert problems["tcp"] is None  # no package takes its name
        for name, (_, text) in cases.items():
            if text is not None:
                assert text in (problems[name] or "")
        segment = engine.allocate(4096, name="a", remote=Access.WRITE)
        engine.read(segment[:10], engine.connect(engine.address)["a"][20:30])
    with TransferEngine(token=TOKEN, transports=["tcp"]) as engine:
        assert "asked for" in (engine.transports["raises"] or "")
    with pytest.raises(TransportUnavailableError, match="no such luck"):
        TransferEngine(token=TOKEN, transports=["raises"])
    with pytest.raises(ArgumentError, match="'raises'.*got 'nobody'"):
        TransferEngine(token=TOKEN, transports=["nobody"])
