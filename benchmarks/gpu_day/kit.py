"""The kit: everything that a bare machine with a GPU needs, in one folder that git ignores.

    wheels/            packages that the machine lacks
    core/              the C++ core for its Python, compressed
    tree.tar.xz        the checkout: what runs and is tested, without git
    llama_cpp.tar.xz   llama.cpp's CUDA build, where one was given
    manifest.json      commit, date, and size and sha256 of each file

A checkout that is on the machine already needs no `tree.tar.xz` beside it.
"""

import datetime
import hashlib
import json
import lzma
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu_day import core, wheels
from benchmarks.gpu_day.wheels import PYTHON

MAX_BYTES = 60 << 20
"""Of a kit: what is brought to a rented machine with each call."""

FOLDER = ".gpu_day"
TREE, LLAMA_CPP, MANIFEST = "tree.tar.xz", "llama_cpp.tar.xz", "manifest.json"
TREE_NAME = "inlay"
"""The folder in the archive."""

# Of the tracked files. Records and traces are many bytes, and nothing there reads them.
CARRIED = ("src", "native", "tests", "benchmarks", "tools")
CARRIED_FILES = ("CMakeLists.txt", "LICENSE", "README.md", "constraints.txt", "pyproject.toml")
LEFT_OUT = ("benchmarks/results", "benchmarks/traces", "benchmarks/soak")


class KitError(RuntimeError):
    """A kit that cannot be made or used; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file of the kit."""

    path: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a kit holds.

    Attributes:
        commit: of the tree; `+changes` where tracked files differ from it.
        made: when, in UTC.
        python: the version that wheels and core are for.
    """

    commit: str
    made: str
    python: str
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Of all parts."""
        return sum(part.nbytes for part in self.parts)


def prepare(
    root: Path,
    kit: Path,
    *,
    python: str | None = None,
    built_core: Path | None = None,
    llama_cpp: Path | None = None,
) -> Manifest:
    """Make a kit of a checkout, or make it new.

    Args:
        python: the Python to build the core for; see `core.find_python`.
        built_core: the core, built already.
        llama_cpp: an archive (tar.xz) with `llama-batched-bench` and its libraries.

    Raises:
        KitError, CoreError, WheelError: it cannot be made, or exceeds `MAX_BYTES`.
    """
    kit.mkdir(parents=True, exist_ok=True)
    (kit / MANIFEST).unlink(missing_ok=True)  # one that is cut off is no kit
    interpreter = core.find_python(python)
    wheels.download(interpreter, root / "constraints.txt", kit / "wheels")
    put_core(built_core or core.cached_core(root, interpreter), kit / "core")
    (kit / LLAMA_CPP).unlink(missing_ok=True)
    if llama_cpp is not None:
        shutil.copy(llama_cpp, kit / LLAMA_CPP)
    pack_tree(root, tracked_files(root), kit / TREE)
    return write_manifest(kit, commit_of(root))


def put_core(built: Path, folder: Path) -> None:
    """Compress the core into a folder that has nothing else.

    Raises:
        KitError: the file is no core of the machine's Python.
    """
    tag = f"cpython-{PYTHON.replace('.', '')}-"
    if not built.is_file() or tag not in built.name or not built.name.endswith(".so"):
        raise KitError(
            f"{built} is no core for Python {PYTHON}: its name has {tag}; leave --core out to have "
            "one built"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / f"{built.name}.xz").write_bytes(lzma.compress(built.read_bytes()))


def tracked_files(root: Path) -> list[str]:
    """Those that are carried, relative to the checkout."""
    listed = _git(root, "ls-files", "-z", "--", *CARRIED, *CARRIED_FILES).split("\0")
    # A file that was deleted and not committed is listed, too.
    return [
        name
        for name in listed
        if name and not name.startswith(tuple(f"{one}/" for one in LEFT_OUT))
        if (root / name).is_file()
    ]


def pack_tree(root: Path, files: Iterable[str], archive: Path) -> None:
    """The same bytes for the same files: names in order, and no dates or owners."""

    def bare(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
        return info

    with tarfile.open(archive, "w:xz", preset=6) as tar:
        for name in sorted(files):
            tar.add(root / name, f"{TREE_NAME}/{name}", recursive=False, filter=bare)


def write_manifest(kit: Path, commit: str) -> Manifest:
    """List what is there, and refuse what is too much.

    Raises:
        KitError: with the largest parts.
    """
    files = sorted(file for file in kit.rglob("*") if file.is_file() and file.name != MANIFEST)
    parts = tuple(
        Part(
            path=str(file.relative_to(kit)),
            nbytes=file.stat().st_size,
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in files
    )
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    manifest = Manifest(commit=commit, made=made, python=PYTHON, parts=parts)
    if manifest.nbytes > MAX_BYTES:
        largest = sorted(parts, key=lambda part: -part.nbytes)[:5]
        raise KitError(
            f"the kit has {mib(manifest.nbytes)}, and may have {mib(MAX_BYTES)}; largest parts: "
            + ", ".join(f"{part.path} {mib(part.nbytes)}" for part in largest)
        )
    text = json.dumps(asdict(manifest), indent=2)
    (kit / MANIFEST).write_text(text + "\n")
    return manifest


def read_manifest(kit: Path) -> Manifest:
    """What a kit holds, and that its files are whole. The tree may have been left behind.

    Raises:
        KitError: there is no kit, or a file is missing or another one.
    """
    file = kit / MANIFEST
    if not file.is_file():
        raise KitError(
            f"there is no kit in {kit}: run tools/gpu_day prepare, or name it with --kit"
        )
    read = json.loads(file.read_text())
    parts = tuple(Part(**part) for part in read.pop("parts"))
    for part in parts:
        if part.path == TREE and not (kit / TREE).exists():
            continue
        if not (kit / part.path).is_file():
            raise KitError(f"{kit / part.path} is missing: bring the whole kit")
        if hashlib.sha256((kit / part.path).read_bytes()).hexdigest() != part.sha256:
            raise KitError(f"{kit / part.path} is not the file of the manifest: bring it again")
    return Manifest(**read, parts=parts)


def commit_of(root: Path) -> str:
    """As records name it."""
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", *CARRIED)
    return _git(root, "rev-parse", "HEAD").strip() + ("+changes" if changed else "")


def mib(nbytes: int) -> str:
    """For people."""
    return f"{nbytes / (1 << 20):.1f} MiB"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise KitError(
            f"a kit is made from a git checkout: {' '.join(command)}: {error}"
        ) from error
