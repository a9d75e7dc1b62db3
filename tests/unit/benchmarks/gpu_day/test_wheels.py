"""Which wheels a kit has, without an index: pip is played."""

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_day import wheels
from benchmarks.gpu_day.wheels import WHEELS, WheelError, download, pins, required
from tests.support.tree import ROOT

CONSTRAINTS = ROOT / "constraints.txt"


def put_wheel(folder: Path, pin: str, requires: str = "") -> Path:
    name, _, version = pin.partition("==")
    stem = f"{name.replace('-', '_')}-{version}"
    file = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", f"Name: {name}\n{requires}\n")
    return file


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What pip is asked for, each time; it has all of it."""
    calls: list[list[str]] = []

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        wanted = command[command.index("--dest") + 2 :]
        calls.append(wanted)
        for pin in wanted:
            name = pin.partition("==")[0]
            put_wheel(folder, pin, "Requires-Dist: pydantic-core==2.50.4" * (name == "pydantic"))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    return calls


def test_every_wheel_has_a_version_in_constraints() -> None:
    assert len(pins(CONSTRAINTS.read_text())) == len(WHEELS) == len(set(WHEELS))


def test_what_the_machine_refuses_is_not_brought() -> None:
    """Its transformers does not start with huggingface_hub 2, and its PyTorch is its own."""
    assert not {"huggingface-hub", "torch", "triton", "numpy", "transformers"} & set(WHEELS)


def test_a_wheel_without_a_version_is_named() -> None:
    text = "\n".join(line for line in CONSTRAINTS.read_text().splitlines() if "gguf" not in line)
    with pytest.raises(WheelError, match="no version of gguf"):
        pins(text)


def test_wheels_are_brought_once(tmp_path: Path, asked: list[list[str]]) -> None:
    download(Path("python3"), CONSTRAINTS, tmp_path)
    assert asked == [pins(CONSTRAINTS.read_text()), ["pydantic-core==2.50.4"]]
    download(Path("python3"), CONSTRAINTS, tmp_path)
    assert len(asked) == 2 and len(list(tmp_path.iterdir())) == len(WHEELS) + 1


def test_wheels_of_other_versions_leave(tmp_path: Path, asked: list[list[str]]) -> None:
    for pin in ("fastapi==0.1", "pydantic-core==2.0", "torch==2.11.0"):
        put_wheel(tmp_path, pin)
    download(Path("python3"), CONSTRAINTS, tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert not {name for name in names if name.startswith(("torch-", "fastapi-0.1-"))}
    assert [name for name in names if name.startswith("pydantic_core-")] == [
        "pydantic_core-2.50.4-py3-none-any.whl"
    ]


def test_a_package_that_pip_has_not_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "no matching distribution for orjson")
    monkeypatch.setattr(wheels.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(WheelError, match=r"Python 3\.12: .*orjson"):
        download(Path("python3"), CONSTRAINTS, tmp_path)


def test_an_exact_requirement_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="names no exact version of pydantic-core"):
        required(put_wheel(tmp_path, "pydantic==2", "Requires-Dist: x>=1"), "pydantic-core")
