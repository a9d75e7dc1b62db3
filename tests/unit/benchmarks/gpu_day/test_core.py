"""Finding a Python and keeping a core; nothing is compiled here."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_day import core
from benchmarks.gpu_day.core import CoreError, cached_core, find_python, key_of

PROJECT = """
[build-system]
requires = ["a"]
[tool.scikit-build]
cmake.build-type = "Release"
[tool.pytest.ini_options]
timeout = 180
"""
PYTHON = Path("/bin/true")  # says no version, and that it is well


def fake_python(folder: Path, answer: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "python3.12"
    file.write_text(f"#!/bin/sh\nexit {answer}\n")
    file.chmod(0o755)
    return file


@pytest.fixture(autouse=True)
def nothing_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    # A real one would be found.
    fake_python(tmp_path / "bin", 1)


def test_one_of_pyenv_is_found_where_the_first_does_not_do(tmp_path: Path) -> None:
    """A shim of pyenv is on PATH, and fails unless that version was chosen."""
    wanted = fake_python(tmp_path / "pyenv" / "versions" / "3.12.4" / "bin", 0)
    fake_python(tmp_path / "pyenv" / "versions" / "3.12.9" / "bin", 1)
    assert find_python() == wanted


@pytest.mark.parametrize("given", [None, "no-such-python"])
def test_none_is_said_with_what_was_tried(given: str | None) -> None:
    with pytest.raises(
        CoreError, match=r"no Python 3\.12 with headers among (python3\.12|no-such)"
    ):
        find_python(given)


def test_another_version_is_none(tmp_path: Path) -> None:
    if sys.version_info[:2] == (3, 12):
        pytest.skip("this is that version")
    with pytest.raises(CoreError, match="install one"):
        find_python(sys.executable)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "native" / "tests").mkdir(parents=True)
    for name in ("CMakeLists.txt", "native/a.cpp", "native/tests/b.cpp"):
        (root / name).write_text(name)
    (root / "pyproject.toml").write_text(PROJECT)
    return root


def test_a_core_is_named_by_what_it_depends_on(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "true")
    before = key_of(checkout, PYTHON)
    (checkout / "native" / "tests" / "b.cpp").write_text("another test")
    (checkout / "pyproject.toml").write_text(PROJECT.replace("180", "90"))
    assert key_of(checkout, PYTHON) == before
    (checkout / "pyproject.toml").write_text(PROJECT.replace("Release", "Debug"))
    other = key_of(checkout, PYTHON)
    (checkout / "native" / "a.cpp").write_text("another source")
    assert len({before, other, key_of(checkout, PYTHON)}) == 3


def test_a_kept_core_is_not_built_again(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "true")
    built: list[Path] = []

    def build(root: Path, python: Path, folder: Path, log: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "_native.cpython-312-x86_64-linux-gnu.so").touch()
        built.append(folder)

    monkeypatch.setattr(core, "build", build)
    first, again = cached_core(checkout, PYTHON), cached_core(checkout, PYTHON)
    assert first == again and len(built) == 1
    (checkout / "native" / "a.cpp").write_text("another source")
    assert cached_core(checkout, PYTHON) != first


def test_a_build_that_fails_says_the_end_of_its_log(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho the compiler is missing; exit 1\n")
    python.chmod(0o755)
    (checkout / "src").mkdir()
    with pytest.raises(CoreError, match="the compiler is missing"):
        core.build(checkout, python, tmp_path / "out", tmp_path / "log", tools=False)
    assert not (tmp_path / "out").exists() and os.listdir(tmp_path / "root" / "src") == []
