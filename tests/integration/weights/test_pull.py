"""Publishers and peers on loopback: what arrives, from whom, and what is refused."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from inlay.core.errors import ArgumentError, WaitTimeoutError, WeightsError, WeightsMismatchError
from inlay.transfer import TransferEngine
from inlay.weights import (
    DirectoryLanding,
    Entry,
    Held,
    Manifest,
    MemoryLanding,
    Part,
    PartsLanding,
    Publisher,
    PullConfig,
    Want,
    newest,
    pull,
    tensor_parallel,
)
from inlay.weights.boxes import Box

RNG = np.random.default_rng(0)
TENSORS: dict[str, Any] = {
    "model.embed_tokens.weight": RNG.standard_normal((96, 40), np.float32),
    "model.layers.0.self_attn.q_proj.weight": RNG.standard_normal((64, 40), np.float32),
    "model.layers.0.self_attn.o_proj.weight": RNG.standard_normal((40, 64), np.float32),
    "model.norm.weight": RNG.standard_normal(40, np.float32),
    "steps": np.arange(7, dtype=np.int64),
}
Q_PROJ, O_PROJ = (f"model.layers.0.self_attn.{letter}_proj.weight" for letter in "qo")


class Cluster:
    """Engines and publishers, which end with the test."""

    def __init__(self, stack: ExitStack, transports: tuple[str, ...] | None = None) -> None:
        self._stack = stack
        self._transports = transports

    def engine(self) -> TransferEngine:
        return self._stack.enter_context(TransferEngine(transports=self._transports))

    def publisher(self, name: str = "m") -> Publisher:
        return self._stack.enter_context(Publisher(self.engine(), name))

    def pull(self, *publishers: Publisher, **options: Any) -> Held:
        options.setdefault("landing", MemoryLanding())
        options.setdefault("config", PullConfig(timeout_s=60))
        addresses = [publisher.address for publisher in publishers]
        held = pull(options.pop("engine", None) or self.engine(), addresses, "m", **options)
        return self._stack.enter_context(held)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


@pytest.fixture
def apart() -> Iterator[Cluster]:
    """As on machines that share no memory."""
    with ExitStack() as stack:
        yield Cluster(stack, ("tcp",))


def tensor(held: Held, name: str, like: np.ndarray) -> np.ndarray:
    (entry,) = held.manifest.by_name[name]
    return held.content(entry).view(like.dtype).reshape(like.shape)


def check(held: Held, tensors: dict[str, Any] = TENSORS) -> None:
    for name, own in tensors.items():
        assert np.array_equal(tensor(held, name, own), own), name


def write(directory: Path, tensors: dict[str, Any] = TENSORS) -> Path:
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text('{"model_type": "x"}')
    return directory


def test_a_directory_arrives_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    publisher = cluster.publisher()
    publisher.publish("1", write(tmp_path / "source"), piece_bytes=4096)
    target = tmp_path / "target"
    held = cluster.pull(publisher, landing=DirectoryLanding(target))
    found = load_file(target / "model.safetensors")
    assert found.keys() == TENSORS.keys()
    assert all(np.array_equal(found[name], TENSORS[name]) for name in TENSORS)
    assert (target / "config.json").read_text() == '{"model_type": "x"}'
    assert sorted(one.name for one in tmp_path.iterdir()) == ["source", "target"]
    check(held)
    publisher.wait_until_held(1, timeout_s=60)
    with pytest.raises(WaitTimeoutError, match="1 of 2 peers"):
        publisher.wait_until_held(2, timeout_s=0.05)


def test_who_comes_late_has_it_from_peers(apart: Cluster) -> None:
    publisher = apart.publisher()
    manifest = publisher.publish("1", TENSORS, piece_bytes=4096)
    first = apart.pull(publisher)
    late = apart.pull(publisher)
    check(first)
    check(late)
    assert sum(late.report.taken_bytes.values()) == manifest.size_bytes
    assert late.report.taken_bytes.get(publisher.address, 0) < manifest.size_bytes


def test_memory_of_this_host_is_copied_once(cluster: Cluster) -> None:
    publisher = cluster.publisher()
    manifest = publisher.publish("1", TENSORS, piece_bytes=4096)
    cluster.pull(publisher)
    late = cluster.pull(publisher)
    check(late)
    assert late.report.taken_bytes == {publisher.address: manifest.size_bytes}


@pytest.mark.parametrize("transports", [None, ("tcp",)])
def test_all_pull_at_once(transports: tuple[str, ...] | None) -> None:
    with ExitStack() as stack:
        _all_pull_at_once(Cluster(stack, transports))


def _all_pull_at_once(cluster: Cluster) -> None:
    publisher = cluster.publisher()
    publisher.publish("1", TENSORS, piece_bytes=4096)
    held: list[Held] = []
    threads = [
        threading.Thread(target=lambda: held.append(cluster.pull(publisher))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    publisher.wait_until_held(3, timeout_s=30)
    for thread in threads:
        thread.join()
    for one in held:
        check(one)


def test_one_changed_tensor_comes_alone(cluster: Cluster, tmp_path: Path) -> None:
    publisher, engine = cluster.publisher(), cluster.engine()
    publisher.publish("1", TENSORS)
    old = cluster.pull(publisher, engine=engine)
    changed = {**TENSORS, O_PROJ: TENSORS[O_PROJ] + 1}
    publisher.publish("2", changed)
    assert newest(engine, [publisher.address], "m") == "2"
    new = cluster.pull(publisher, engine=engine, previous=old)
    check(new, changed)
    check(old)
    assert sum(new.report.taken_bytes.values()) == TENSORS[O_PROJ].nbytes
    target = tmp_path / "2"
    on_disk = cluster.pull(publisher, landing=DirectoryLanding(target), previous=old)
    assert sum(on_disk.report.taken_bytes.values()) == TENSORS[O_PROJ].nbytes
    assert np.array_equal(load_file(target / "model.safetensors")[O_PROJ], changed[O_PROJ])


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_ranks_have_their_parts_in_their_dtype(cluster: Cluster, degree: int) -> None:
    publisher = cluster.publisher()
    publisher.publish("1", TENSORS, piece_bytes=4096)
    for rank in range(degree):
        landing = PartsLanding(tensor_parallel(rank, degree, dtype="BF16"))
        cluster.pull(publisher, landing=landing)
        for name, axis in ((Q_PROJ, 0), (O_PROJ, 1), ("model.embed_tokens.weight", 0)):
            whole = torch.from_numpy(TENSORS[name]).to(torch.bfloat16)
            mine = whole.chunk(degree, axis)[rank].contiguous()
            assert landing.dtypes[name] == "BF16"
            found = torch.from_numpy(landing.arrays[name].view(np.int16)).view(torch.bfloat16)
            assert torch.equal(found, mine)
        assert np.array_equal(landing.arrays["steps"].view(np.int64), TENSORS["steps"])


def test_trainers_with_parts_are_one_publisher(cluster: Cluster) -> None:
    whole = TENSORS[Q_PROJ]
    publishers = []
    for number in range(4):
        mine: dict[str, Any] = {Q_PROJ: whole[16 * number : 16 * (number + 1)]}
        parts = {Q_PROJ: Part(whole.shape, (16 * number, 0))}
        if number == 0:
            mine[O_PROJ] = torch.from_numpy(TENSORS[O_PROJ]).to(torch.bfloat16)
        publisher = cluster.publisher()
        publisher.publish("1", mine, parts=parts, piece_bytes=4096)
        publishers.append(publisher)
    box = Box((0, 5), (64, 20))
    landing = PartsLanding(lambda manifest: {Q_PROJ: Want(box=box), O_PROJ: Want(dtype="F32")})
    cluster.pull(*publishers, landing=landing)
    assert np.array_equal(landing.arrays[Q_PROJ].view(np.float32), whole[:, 5:25])
    expected = torch.from_numpy(TENSORS[O_PROJ]).to(torch.bfloat16).float().numpy()
    assert np.array_equal(landing.arrays[O_PROJ].view(np.float32), expected)
    first = cluster.pull(*publishers)  # as they are, for others to pull
    second = cluster.pull(*reversed(publishers))
    assert first.manifest == second.manifest
    with pytest.raises(WeightsMismatchError, match="hold 1920 of 2560"):
        cluster.pull(*publishers[:3])


def test_a_publisher_may_be_named_twice(cluster: Cluster) -> None:
    publisher = cluster.publisher()
    publisher.publish("1", TENSORS, piece_bytes=4096)
    port = publisher.address.rpartition(":")[2]
    names = [publisher.address, f"localhost:{port}", publisher.address]
    with pull(cluster.engine(), names, "m", landing=MemoryLanding()) as held:
        check(held)


def test_damaged_pieces_come_from_others(apart: Cluster) -> None:
    publisher = apart.publisher()
    publisher.publish("1", TENSORS, piece_bytes=4096)
    broken = apart.pull(publisher)
    (entry,) = broken.manifest.by_name[Q_PROJ]
    content = broken.content(entry)
    content[5000] ^= 1
    late = apart.pull(publisher)
    check(late)
    assert late.report.damaged >= 1
    assert late.report.taken_bytes[publisher.address] > 0


def test_what_changed_after_it_was_published_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    publisher = cluster.publisher()
    source = write(tmp_path / "source")
    publisher.publish("1", source)
    with (source / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"1234")
    with pytest.raises(WeightsError, match="was it changed after it was published"):
        cluster.pull(publisher)


def test_who_offers_a_file_that_was_cut_off_is_not_asked_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    publisher = cluster.publisher()
    source = write(tmp_path / "source")
    publisher.publish("1", source)
    os.truncate(source / "model.safetensors", 100)
    with pytest.raises(WeightsError, match=r"cannot be read .*: was it changed after it was pub"):
        cluster.pull(publisher)


@pytest.mark.parametrize("left", [None, 100], ids=["removed", "cut off"])
def test_the_previous_version_may_be_gone(
    cluster: Cluster, tmp_path: Path, left: int | None
) -> None:
    publisher, engine = cluster.publisher(), cluster.engine()
    publisher.publish("1", write(tmp_path / "source"), piece_bytes=4096)
    old = cluster.pull(publisher, engine=engine, landing=DirectoryLanding(tmp_path / "1"))
    if left is None:
        shutil.rmtree(tmp_path / "1")
    else:
        os.truncate(tmp_path / "1/model.safetensors", left)
    publisher.publish("2", tmp_path / "source", piece_bytes=4096)
    landing = DirectoryLanding(tmp_path / "2")
    check(cluster.pull(publisher, engine=engine, landing=landing, previous=old))


def test_the_previous_version_may_have_been_changed(cluster: Cluster, tmp_path: Path) -> None:
    publisher, engine = cluster.publisher(), cluster.engine()
    publisher.publish("1", write(tmp_path / "source"), piece_bytes=4096)
    old = cluster.pull(publisher, engine=engine, landing=DirectoryLanding(tmp_path / "1"))
    file = tmp_path / "1/model.safetensors"
    with file.open("r+b") as changed:  # of the same size
        changed.seek(-100, os.SEEK_END)
        changed.write(bytes(byte ^ 1 for byte in file.read_bytes()[-100:]))
    publisher.publish("2", tmp_path / "source", piece_bytes=4096)
    landing = DirectoryLanding(tmp_path / "2")
    new = cluster.pull(publisher, engine=engine, landing=landing, previous=old)
    check(new)
    assert 0 < new.report.kept_bytes < new.manifest.size_bytes


def test_the_previous_version_may_be_offered_no_more(cluster: Cluster, tmp_path: Path) -> None:
    publisher, engine = cluster.publisher(), cluster.engine()
    publisher.publish("1", write(tmp_path / "source"), piece_bytes=4096)
    old = cluster.pull(publisher, engine=engine, landing=DirectoryLanding(tmp_path / "1"))
    old.close()
    publisher.publish("2", tmp_path / "source", piece_bytes=4096)
    landing = DirectoryLanding(tmp_path / "2")
    new = cluster.pull(publisher, engine=engine, landing=landing, previous=old)
    check(new)
    assert new.report.kept_bytes == new.manifest.size_bytes


HOLD = """
import sys
from inlay.transfer import TransferEngine
from inlay.weights import MemoryLanding, pull
with TransferEngine() as engine, pull(engine, [sys.argv[1]], "m", landing=MemoryLanding()):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_peer_stops_nobody(cluster: Cluster) -> None:
    publisher = cluster.publisher()
    tensors = {"a": RNG.standard_normal((1 << 21,), np.float32)}
    publisher.publish("1", tensors, piece_bytes=4096)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, publisher.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as peer:
        assert peer.stdout is not None and peer.stdout.readline() == "held\n"
        killed: list[int] = []

        def kill(done: int, total: int) -> None:
            if not killed:
                killed.append(done)
                peer.send_signal(signal.SIGKILL)

        config = PullConfig(bucket_bytes=4096, timeout_s=20)
        held = cluster.pull(publisher, config=config, progress=kill)
        check(held, tensors)
        assert killed[0] < tensors["a"].nbytes
        peer.wait()


def test_holders_go_on_without_the_publisher(cluster: Cluster) -> None:
    publisher = cluster.publisher()
    publisher.publish("1", TENSORS, piece_bytes=4096)
    cluster.pull(publisher)
    with pytest.raises(WeightsError, match="no checkpoint named 'x'"):
        pull(cluster.engine(), [publisher.address], "x", landing=MemoryLanding())
    with pytest.raises(WeightsError, match="does not hold m 9"):
        cluster.pull(publisher, version="9")


@pytest.mark.parametrize(
    ("want", "message"),
    [
        ({"x": Want()}, "has no tensor x"),
        ({Q_PROJ: Want(shape=(64, 41))}, r"published as \[64, 40\] and wanted as \[64, 41\]"),
        ({Q_PROJ: Want(box=Box((60, 0), (8, 40)))}, "is not in"),
        ({"steps": Want(dtype="F32")}, "published as I64 and wanted as F32"),
    ],
)
def test_other_shapes_and_dtypes_are_refused(
    cluster: Cluster, want: dict[str, Want], message: str
) -> None:
    publisher = cluster.publisher()
    publisher.publish("1", TENSORS)
    with pytest.raises(WeightsMismatchError, match=message):
        cluster.pull(publisher, landing=PartsLanding(lambda manifest: want))


def test_partial_checkpoints_are_not_published(cluster: Cluster, tmp_path: Path) -> None:
    publisher = cluster.publisher()
    source = write(tmp_path / "source")
    whole = (source / "model.safetensors").read_bytes()
    publish: Callable[[], Any] = lambda: publisher.publish("1", source)  # noqa: E731
    (source / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(WeightsError, match="it is cut off"):
        publish()
    (source / "model.safetensors").write_bytes(whole[:20])
    with pytest.raises(WeightsError, match="cut off or no safetensors"):
        publish()
    (source / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="holds no"):
        publish()
    (source / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    with pytest.raises(WeightsError, match="lacks 1 of 1 weight files, b.safetensors"):
        publish()
    publisher.publish("2", TENSORS)
    with pytest.raises(ArgumentError, match="offered already"):
        publisher.publish("2", TENSORS)
    with pytest.raises(WeightsMismatchError, match="a version has 1 to 64 letters"):
        publisher.publish("a/b", TENSORS)


@pytest.mark.parametrize("name", ["../up", "a/b", "model.safetensors", ".."])
def test_files_beside_tensors_stay_in_their_directory(tmp_path: Path, name: str) -> None:
    entry = Entry(name=name, dtype="", shape=(3,), start=0)
    manifest = Manifest(
        name="m", version="1", piece_bytes=4096, entries=(entry,), checksums=bytes(4)
    )
    with TransferEngine() as engine, pytest.raises(WeightsMismatchError, match="no name for"):
        DirectoryLanding(tmp_path / "target").open(engine, manifest)
    assert not list(tmp_path.iterdir())


def test_a_directory_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(WeightsError, match="is not empty"):
        DirectoryLanding(tmp_path)


def test_a_directory_is_replaced_by_a_whole_one(cluster: Cluster, tmp_path: Path) -> None:
    publisher, target = cluster.publisher(), write(tmp_path / "target")
    publisher.publish("1", TENSORS, piece_bytes=4096)
    before = (target / "config.json").read_bytes()
    with pytest.raises(WeightsError):
        cluster.pull(publisher, version="2", landing=DirectoryLanding(target, replace=True))
    assert (target / "config.json").read_bytes() == before
    # Versions may have any of these names.
    others = [write(tmp_path / f"target.{end}") for end in ("partial", "partial.lock", "replaced")]
    cluster.pull(publisher, landing=DirectoryLanding(target, replace=True))
    assert [one.name for one in target.iterdir()] == ["model.safetensors"]
    assert sorted(tmp_path.iterdir()) == sorted([target, *others])
    assert all((one / "config.json").exists() for one in others)


@pytest.mark.parametrize("replace", [False, True])
def test_two_pulls_to_one_directory(cluster: Cluster, tmp_path: Path, replace: bool) -> None:
    """The second is refused while the first writes, and takes nothing away from it."""
    publisher, target = cluster.publisher(), tmp_path / "target"
    publisher.publish("1", TENSORS, piece_bytes=4096)
    refused: list[str] = []

    def second(done: int, total: int) -> None:
        if not refused:
            landing = DirectoryLanding(target, replace=replace)
            with ThreadPoolExecutor() as pool, pytest.raises(WeightsError) as error:
                pool.submit(cluster.pull, publisher, landing=landing).result()
            refused.append(str(error.value))

    late = DirectoryLanding(target)
    first = cluster.pull(publisher, landing=DirectoryLanding(target), progress=second)
    assert f"another pull writes to {target}: wait until it ends" in refused[0]
    check(first)
    with pytest.raises(WeightsError, match="is not empty"):
        cluster.pull(publisher, landing=late)
    assert [one.name for one in tmp_path.iterdir()] == ["target"]
    # Who only holds the directory keeps nobody from replacing it, and leaves that one alone.
    replaced = DirectoryLanding(target, replace=True)
    check(cluster.pull(publisher, landing=replaced, progress=lambda *_: first.close()))
    assert [one.name for one in tmp_path.iterdir()] == ["target"]


DIE = """
import os, signal, sys
from pathlib import Path
from inlay.transfer import TransferEngine
from inlay.weights import DirectoryLanding, pull
with TransferEngine() as engine:
    landing = DirectoryLanding(Path(sys.argv[2]))
    die = lambda done, total: os.kill(os.getpid(), signal.SIGKILL)
    pull(engine, [sys.argv[1]], "m", landing=landing, progress=die)
"""


def test_what_a_killed_pull_leaves_is_in_nobodys_way(cluster: Cluster, tmp_path: Path) -> None:
    publisher, target = cluster.publisher(), tmp_path / "target"
    publisher.publish("1", TENSORS, piece_bytes=4096)
    killed = subprocess.run([sys.executable, "-c", DIE, publisher.address, target], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    partial = tmp_path / ".target.partial"
    assert sorted(tmp_path.iterdir()) == [partial, tmp_path / ".target.partial.lock"]
    (partial / "stray").write_text("")
    check(cluster.pull(publisher, landing=DirectoryLanding(target)))
    assert [one.name for one in target.iterdir()] == ["model.safetensors"]
    assert [one.name for one in tmp_path.iterdir()] == ["target"]


def test_what_this_engine_holds_already_leaves_nothing_half(
    cluster: Cluster, tmp_path: Path
) -> None:
    publisher, engine = cluster.publisher(), cluster.engine()
    publisher.publish("1", TENSORS)
    cluster.pull(publisher, engine=engine, landing=DirectoryLanding(tmp_path / "a"))
    with pytest.raises(ArgumentError, match="another open segment"):
        cluster.pull(publisher, engine=engine, landing=DirectoryLanding(tmp_path / "b"))
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_no_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(WeightsError, match="is a file or a link"):
        DirectoryLanding(tmp_path / "link", replace=True)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack)
        publisher = cluster.publisher()
        publisher.publish("1", TENSORS)
        (tmp_path / "file").write_text("")
        landing = DirectoryLanding(tmp_path / "file" / "pulled")
        with pytest.raises(WeightsError, match=r"m was not pulled: .*file.*Not a directory"):
            pull(cluster.engine(), [publisher.address], "m", landing=landing)


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with ExitStack() as stack:
        cluster = Cluster(stack)
        publisher = cluster.publisher()
        publisher.publish("1", TENSORS)
        landing = DirectoryLanding(tmp_path / "pulled")
        with pytest.raises(WeightsError, match=r"of \d+ bytes: No space left"):
            pull(cluster.engine(), [publisher.address], "m", landing=landing)
    assert not list(tmp_path.iterdir()), "nothing half-written stays"


@pytest.mark.parametrize("version", [".", "..", ".x", "-x", "a/b"])
def test_versions_are_names_of_directories(version: str) -> None:
    with ExitStack() as stack, pytest.raises(WeightsMismatchError, match="begins with"):
        Cluster(stack).publisher().publish(version, TENSORS)
