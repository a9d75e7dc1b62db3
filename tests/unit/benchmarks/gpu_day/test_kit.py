"""What a kit holds, and what is no kit."""

import lzma
import random
import subprocess
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu_day import archives, kit
from benchmarks.gpu_day.kit import KitError, pack_tree, prepare, put_core, read_manifest

CORE = "_native.cpython-312-x86_64-linux-gnu.so"
FILES = {
    "src/inlay/__init__.py": "version",
    "tests/unit/test_it.py": "a test",
    "benchmarks/case.py": "a case",
    "benchmarks/results/a/b.json": "a record",
    "tools/gpu_day": "a program",
    "docs/page.md": "a page",
    "constraints.txt": "a==1",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return root


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `prepare` takes from elsewhere: a Python, wheels, and the core, which is returned."""

    def download(python: Path, constraints: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a-1-py3-none-any.whl").write_text("a wheel")

    monkeypatch.setattr(kit.core, "find_python", lambda given: Path("python3.12"))
    monkeypatch.setattr(kit.wheels, "download", download)
    built = tmp_path / CORE
    built.write_bytes(b"a core" * 1000)
    return built


def test_a_kit_is_made_and_read(checkout: Path, core: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kit"
    made = prepare(checkout, folder, built_core=core)
    assert read_manifest(folder) == made
    assert [part.path for part in made.parts] == [
        f"core/{CORE}.xz", "tree.tar.xz", "wheels/a-1-py3-none-any.whl",
    ]  # fmt: skip
    assert lzma.decompress((folder / "core" / f"{CORE}.xz").read_bytes()) == core.read_bytes()
    head = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    assert made.commit == subprocess.check_output(head, text=True).strip()


def test_the_tree_has_what_runs_and_is_tested(checkout: Path, core: Path, tmp_path: Path) -> None:
    (checkout / "tools" / "gpu_day").write_text("a changed program")
    (checkout / "tests" / "scratch.py").write_text("not tracked")
    (checkout / "benchmarks" / "case.py").unlink()
    made = prepare(checkout, tmp_path / "kit", built_core=core)
    with tarfile.open(tmp_path / "kit" / "tree.tar.xz") as tar:
        texts = {one.name: tar.extractfile(one).read().decode() for one in tar.getmembers()}
    assert texts == {
        "inlay/src/inlay/__init__.py": "version",
        "inlay/tests/unit/test_it.py": "a test",
        "inlay/tools/gpu_day": "a changed program",
        "inlay/constraints.txt": "a==1",
    }
    assert made.commit.endswith("+changes")


def test_the_same_tree_is_the_same_archive(checkout: Path, tmp_path: Path) -> None:
    archives = [tmp_path / "one", tmp_path / "other"]
    for archive in archives:
        (checkout / "constraints.txt").touch()
        pack_tree(checkout, ["constraints.txt", "tools/gpu_day"], archive)
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_too_much_is_refused_with_the_largest_parts(
    checkout: Path, core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit, "MAX_BYTES", 3 << 20)
    peer = tmp_path / "peer.tar.xz"
    peer.write_bytes(bytes(4 << 20))
    folder = tmp_path / "kit"
    prepare(checkout, folder, built_core=core)
    with pytest.raises(
        KitError, match=r"has 4\.0 MiB, and may have 3\.0 MiB.*: llama_cpp\.tar\.xz"
    ):
        prepare(checkout, folder, built_core=core, llama_cpp=peer)
    with pytest.raises(KitError, match="there is no kit"):
        read_manifest(folder)
    # Without the peer it is small enough again.
    assert prepare(checkout, folder, built_core=core).nbytes < 1 << 20


def test_one_that_was_cut_off_is_no_kit(
    checkout: Path, core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kit"
    prepare(checkout, folder, built_core=core)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kit, "pack_tree", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(checkout, folder, built_core=core)
    with pytest.raises(KitError, match="there is no kit"):
        read_manifest(folder)


@pytest.mark.parametrize("name", ["_native.cpython-311-x86_64-linux-gnu.so", "nothing.so"])
def test_a_core_for_another_python_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(KitError, match=r"no core for Python 3\.12: its name has cpython-312-"):
        put_core(tmp_path / name, tmp_path / "core")


def test_a_kit_that_is_not_whole_is_refused(checkout: Path, core: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kit"
    prepare(checkout, folder, built_core=core)
    wheel = folder / "wheels" / "a-1-py3-none-any.whl"
    wheel.write_text("cut off")
    with pytest.raises(KitError, match="a-1-py3-none-any.whl is not the file of the manifest"):
        read_manifest(folder)
    wheel.unlink()
    with pytest.raises(KitError, match="a-1-py3-none-any.whl is missing: bring the whole kit"):
        read_manifest(folder)


def test_a_checkout_that_is_there_already_needs_no_tree(
    checkout: Path, core: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kit"
    made = prepare(checkout, folder, built_core=core)
    (folder / "tree.tar.xz").unlink()
    assert read_manifest(folder) == made


def test_no_checkout_gives_no_kit(core: Path, tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").touch()
    with pytest.raises(KitError, match="is made from a git checkout"):
        prepare(tmp_path, tmp_path / "kit", built_core=core)


def test_archives_of_logs_are_small_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "long.log").write_bytes(b"begin" + bytes(100) + b"end")
    (logs / "short.log").write_text("all")
    monkeypatch.setattr(archives, "TAIL_BYTES", 10)
    assert archives.pack_logs(logs, tmp_path / "logs.tar.gz") == []
    with tarfile.open(tmp_path / "logs.tar.gz") as tar:
        texts = {one.name: tar.extractfile(one).read() for one in tar.getmembers()}
    assert texts == {"long.log": bytes(7) + b"end", "short.log": b"all"}


def test_the_largest_traces_are_left_behind(tmp_path: Path) -> None:
    files = []
    for size in (1000, 50_000, 2000):
        files.append(tmp_path / f"{size}.json")
        files[-1].write_bytes(random.randbytes(size))
    archive = tmp_path / "traces.tar.gz"
    assert archives.pack(files, archive, max_bytes=20_000) == ["50000.json"]
    with tarfile.open(archive) as tar:
        assert sorted(tar.getnames()) == ["1000.json", "2000.json"]
    assert archives.pack([], archive) == []
