"""The C++ core for the machine's Python, built where a compiler and time are.

It is kept under `build/gpu_day`, named by a hash of all that it depends on.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from benchmarks.gpu_day.wheels import PYTHON

PATTERN = "_native*.so"
TOOLS = ("nanobind", "scikit-build-core", "cmake", "ninja")
SOURCES = ("CMakeLists.txt", "native")
READ = ("pyproject.toml", "src", "README.md", "LICENSE")  # by a build, too

_CHECK = f"""
import os, sys, sysconfig
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
right = sys.version_info[:2] == {tuple(map(int, PYTHON.split(".")))}
sys.exit(not (right and os.path.exists(headers)))
"""


class CoreError(RuntimeError):
    """The core cannot be built; the message says what is missing."""


def find_python(given: str | None = None) -> Path:
    """A Python of the machine's version, with headers.

    Args:
        given: the only one to look at; by default `python3.12` and those of pyenv are tried.

    Raises:
        CoreError: there is none.
    """
    tried = []
    for name in [given] if given else _names():
        tried.append(name)
        found = shutil.which(name)
        if found and not subprocess.run([found, "-c", _CHECK], capture_output=True).returncode:
            return Path(found)
    raise CoreError(
        f"no Python {PYTHON} with headers among {', '.join(tried)}: install one (Debian, Ubuntu: "
        f"python{PYTHON}-dev, python{PYTHON}-venv; or pyenv install {PYTHON}) or name one with "
        "--python"
    )


def _names() -> Iterator[str]:
    yield f"python{PYTHON}"
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob(f"versions/{PYTHON}*/bin/python{PYTHON}"), reverse=True))


def compiler() -> str:
    """That is asked for by CXX, or g++."""
    return os.environ.get("CXX", "g++")


def key_of(root: Path, python: Path) -> str:
    """A hash of the sources, the compiler and the Python."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    settings = [project["build-system"], project["tool"]["scikit-build"]]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for command in ([compiler(), "--version"], [str(python), "-VV"]):
        digest.update(subprocess.run(command, capture_output=True, check=True).stdout)
    for name in SOURCES:
        files = [root / name] if (root / name).is_file() else sorted((root / name).rglob("*"))
        for file in files:
            if file.is_file() and "tests" not in file.relative_to(root).parts:
                digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def cached_core(root: Path, python: Path) -> Path:
    """The core of these sources, built now if no build of them is kept.

    Raises:
        CoreError: it cannot be built.
    """
    folder = root / "build" / "gpu_day" / f"core-{key_of(root, python)}"
    if not list(folder.glob(PATTERN)):
        print(f"building the core for Python {PYTHON}: about eight minutes of one core", flush=True)
        build(root, python, folder, folder.with_suffix(".log"))
    return next(folder.glob(PATTERN))


def build(root: Path, python: Path, folder: Path, log: Path, tools: bool = True) -> None:
    """Build from a copy of the sources, so that the checkout's own builds stay as they are.

    Args:
        tools: install what a build needs in an environment for it; else this Python has it.

    Raises:
        CoreError: with the end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, log.open("wb") as to:
        work = Path(name)
        for one in (*SOURCES, *READ):
            source = root / one
            if source.is_dir():
                # The demo model and compiled files are no part of the core.
                ignored = shutil.ignore_patterns("demo", "*.so", "__pycache__", "build")
                shutil.copytree(source, work / "source" / one, ignore=ignored)
            elif source.is_file():
                (work / "source").mkdir(exist_ok=True)
                shutil.copy(source, work / "source" / one)
        if tools:
            _run([str(python), "-m", "venv", str(work / "venv")], work, to, log)
            python = work / "venv" / "bin" / "python"
            pinned = ["-c", str(root / "constraints.txt")]
            _run([str(python), "-m", "pip", "install", *pinned, *TOOLS], work, to, log)
        target = work / "built"
        command = [str(python), "-m", "pip", "install", "--no-deps", "--no-build-isolation"]
        _run([*command, "--no-compile", "--target", str(target), "."], work / "source", to, log)
        built = list((target / "inlay").glob(PATTERN))
        if not built:
            raise CoreError(f"the build made no {PATTERN}; its output is in {log}")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(built[0], folder)


def _run(command: list[str], cwd: Path, to: IO[bytes], log: Path) -> None:
    environment = {**os.environ, "CXX": compiler()}
    done = subprocess.run(
        command, cwd=cwd, stdout=to, stderr=subprocess.STDOUT, env=environment, check=False
    )
    if done.returncode:
        end = log.read_text(errors="replace")[-2000:]
        raise CoreError(f"{' '.join(command)} failed; the end of {log}:\n{end}")
