"""Hub names against a local hub: what is fetched, resumed, refused, and said."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from inlay.core.errors import (
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    ResourceError,
    UnsupportedModelError,
)
from inlay.models import hub as hub_module
from inlay.models import source
from inlay.models.hub import fetch, fetch_config
from inlay.models.source import resolve_model
from inlay.models.text import Text
from tests.support.hub_server import HubServer
from tests.support.tiny_models import make_tiny_model

LARGE = {
    "architecture": "llama",
    "hidden_size": 128,
    "intermediate_size": 9000,
    "num_hidden_layers": 1,
}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub library writes 10 MB at a time; smaller files shall have parts too."""
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("small") / "model", shards=2)


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("large") / "model", **LARGE)


def test_only_needed_files(hub: HubServer, small_model: Path, tmp_path: Path) -> None:
    repo = hub.add("org/tiny", small_model)
    repo.files |= dict.fromkeys(
        (
            "pytorch_model.bin",
            "model-Q4_K.gguf",
            "consolidated.safetensors",
            "original/model.safetensors",
            "modeling_custom.py",
            "README.md",
        ),
        b"not wanted",
    )
    seen: list[tuple[int, int]] = []
    directory = fetch(
        "org/tiny",
        endpoint=hub.url,
        cache_dir=tmp_path,
        progress=lambda done, total: seen.append((done, total)),
    )
    names = {file.name for file in directory.iterdir()}
    assert names == {file.name for file in small_model.iterdir()}
    assert all((directory / n).read_bytes() == (small_model / n).read_bytes() for n in names)
    total = sum(file.stat().st_size for file in small_model.iterdir())
    assert seen[-1] == (total, total)
    assert Text.load(directory).encode("lantern")

    transfers = len(hub.gets)
    again = fetch("org/tiny", revision="main", endpoint=hub.url, cache_dir=tmp_path)
    assert again == directory and len(hub.gets) == transfers


def test_a_plan_needs_config_json_alone(hub: HubServer, small_model: Path, tmp_path: Path) -> None:
    repo = hub.add("org/tiny", small_model)
    config = fetch_config("org/tiny", endpoint=hub.url, cache_dir=tmp_path)
    assert config == json.loads((small_model / "config.json").read_text())
    assert [file.name for file in tmp_path.rglob("*") if file.is_symlink()] == ["config.json"]
    repo.files.pop("config.json")
    with pytest.raises(ModelNotFoundError, match="org/tiny on .* has no config.json"):
        fetch_config("org/tiny", endpoint=hub.url, cache_dir=tmp_path / "other")
    with pytest.raises(ModelNotFoundError, match="no model org/none"):
        fetch_config("org/none", endpoint=hub.url, cache_dir=tmp_path)


@pytest.mark.usefixtures("small_chunks")
def test_broken_connection_resumes(hub: HubServer, large_model: Path, tmp_path: Path) -> None:
    hub.add("org/large", large_model)
    hub.break_after["model.safetensors"] = [3_000_000, 2_000_000]
    directory = fetch("org/large", endpoint=hub.url, cache_dir=tmp_path)
    name = "model.safetensors"
    assert (directory / name).read_bytes() == (large_model / name).read_bytes()
    starts = [first for file, first in hub.gets if file == name]
    assert starts[0] == 0 and 0 < starts[1] <= 3_000_000 and starts[1] < starts[2] <= 5_000_000


def _start_download(hub: HubServer, cache: Path) -> "subprocess.Popen[bytes]":
    code = "from huggingface_hub import constants; constants.DOWNLOAD_CHUNK_SIZE = 1 << 16; "
    code += "from inlay.models.source import resolve_model; "
    code += "print(resolve_model('org/large').directory)"
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(cache),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)


def test_killed_download_resumes(hub: HubServer, large_model: Path, tmp_path: Path) -> None:
    """Through HF_ENDPOINT, in processes of their own, as users do."""
    hub.add("org/large", large_model)
    hub.stall_after["model.safetensors"] = 4_000_000
    with _start_download(hub, tmp_path) as process:
        assert hub.stalled.wait(60)
        deadline = time.monotonic() + 30
        while _partial_bytes(tmp_path) < 3_000_000 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    have = _partial_bytes(tmp_path)
    assert 3_000_000 <= have <= 4_000_000
    with _start_download(hub, tmp_path) as process:
        out, _ = process.communicate(timeout=60)
    directory = Path(out.decode().strip())
    name = "model.safetensors"
    assert (directory / name).read_bytes() == (large_model / name).read_bytes()
    assert [first for file, first in hub.gets if file == name] == [0, have]
    assert _partial_bytes(tmp_path) == 0


def _partial_bytes(cache: Path) -> int:
    return sum(file.stat().st_size for file in cache.rglob("*.inlay-partial"))


@pytest.mark.usefixtures("small_chunks")
def test_damaged_part_is_found(hub: HubServer, large_model: Path, tmp_path: Path) -> None:
    hub.add("org/large", large_model)
    hub.break_after["model.safetensors"] = [1_000_000] + [0] * 6
    with pytest.raises(ModelError, match="goes on where it stopped"):
        fetch("org/large", endpoint=hub.url, cache_dir=tmp_path)
    (partial,) = tmp_path.rglob("*.inlay-partial")
    partial.write_bytes(b"\0" * partial.stat().st_size)
    hub.break_after.clear()
    with pytest.raises(ModelFileError, match="checksum"):
        fetch("org/large", endpoint=hub.url, cache_dir=tmp_path)
    assert fetch("org/large", endpoint=hub.url, cache_dir=tmp_path)


def test_offline(hub: HubServer, small_model: Path, tmp_path: Path) -> None:
    hub.add("org/tiny", small_model)
    with pytest.raises(ModelNotFoundError, match="org/tiny is not.*in the cache"):
        fetch("org/tiny", offline=True, cache_dir=tmp_path)
    directory = fetch("org/tiny", endpoint=hub.url, cache_dir=tmp_path)
    assert fetch("org/tiny", offline=True, cache_dir=tmp_path) == directory
    # A hub that cannot be reached is as good as offline mode.
    nowhere = "http://127.0.0.1:9"
    assert fetch("org/tiny", endpoint=nowhere, cache_dir=tmp_path) == directory
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9 cannot be reached"):
        fetch("org/other", endpoint=nowhere, cache_dir=tmp_path)


def test_all_files_are_of_one_commit(
    hub: HubServer, small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch is looked up once: a push during the download does not mix two versions."""
    repo = hub.add("org/tiny", small_model, branches=("main", "refs/pr/1"))
    asked: list[str] = []

    def download(name: str, *, revision: str, **options: Any) -> str:
        asked.append(revision)
        return huggingface_hub.snapshot_download(name, revision=revision, **options)

    with monkeypatch.context() as patch:
        patch.setattr(hub_module, "snapshot_download", download)
        for revision in (None, "refs/pr/1", repo.commit):
            fetch("org/tiny", revision=revision, endpoint=hub.url, cache_dir=tmp_path)
    assert asked == [repo.commit] * 3
    for revision in (None, "main", "refs/pr/1", repo.commit):
        assert fetch("org/tiny", revision=revision, offline=True, cache_dir=tmp_path)
    refs = (file for file in tmp_path.glob("*/refs/**/*") if file.is_file())
    assert {file.name for file in refs} == {"main", "1"}


def test_access(hub: HubServer, small_model: Path, tmp_path: Path) -> None:
    hub.add("org/private", small_model, token="hf_right")
    hub.add("org/gated", small_model, token="hf_right", gated=True)

    def get(name: str, **more: str) -> Path:
        return fetch(name, endpoint=hub.url, cache_dir=tmp_path, **more)  # type: ignore[arg-type]

    for name in ("org/missing", "org/private"):
        with pytest.raises(ModelNotFoundError, match=f"no model {name} on .* private"):
            get(name)
    with pytest.raises(ModelNotFoundError, match="org/gated is gated: accept its terms at"):
        get("org/gated")
    with pytest.raises(ModelNotFoundError, match="org/gated is gated"):
        get("org/gated", token="hf_wrong")
    with pytest.raises(ModelNotFoundError, match="no revision 'v9'"):
        get("org/gated", token="hf_right", revision="v9")
    assert get("org/private", token="hf_right").is_dir()
    assert get("org/gated", token="hf_right").is_dir()
    hub.status = 503
    with pytest.raises(ModelError, match="answered 503 for org/other"):
        get("org/other")


def test_refused_before_the_download(
    hub: HubServer,
    small_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def get(name: str, weight_format: str = "auto") -> Path:
        hub.gets.clear()
        cache = tmp_path / name
        return fetch(name, weight_format=weight_format, endpoint=hub.url, cache_dir=cache)

    def weights_fetched() -> list[str]:
        return [file for file, _ in hub.gets if file.endswith(".safetensors")]

    repo = hub.add("org/strange", small_model)
    repo.files["config.json"] = b'{"model_type": "mamba"}'
    with pytest.raises(UnsupportedModelError, match="'mamba' is not supported; supported are"):
        get("org/strange")
    assert not weights_fetched()

    pickled = hub.add("org/pickled", small_model)
    pickled.files = {"config.json": pickled.files["config.json"], "pytorch_model.bin": b""}
    with pytest.raises(UnsupportedModelError, match=r"no \*\.safetensors.*pytorch_model\.bin"):
        get("org/pickled")

    short = hub.add("org/short", small_model)
    del short.files["model-00002-of-00002.safetensors"]
    with pytest.raises(ModelFileError, match="model-00002-of-00002"):
        get("org/short")
    assert not weights_fetched()

    drafting = hub.add("org/drafting", small_model)
    index = json.loads(drafting.files["model.safetensors.index.json"])
    index["weight_map"]["model.layers.99.draft.weight"] = "draft.safetensors"
    drafting.files["model.safetensors.index.json"] = json.dumps(index).encode()
    found = get("org/drafting")
    assert set(weights_fetched()) == {file.name for file in found.glob("*.safetensors")}
    assert "names draft.safetensors, which the repository does not have" in caplog.text
    hub.gets.clear()

    hub.add("org/tiny", small_model)
    monkeypatch.setattr(hub_module, "_SPARE_DISK_BYTES", 1 << 60)
    with pytest.raises(ResourceError, match=r"org/tiny needs .* of disk.*HF_HOME"):
        get("org/tiny")
    monkeypatch.undo()
    monkeypatch.setattr(hub_module, "total_memory_bytes", lambda: 1000)
    with pytest.raises(ResourceError, match=r"weights of org/tiny need .* 1000 B of memory"):
        get("org/tiny")
    assert not weights_fetched()
    # What counts is how they will be held.
    monkeypatch.setattr(hub_module, "total_memory_bytes", lambda: 400_000)
    for weight_format in ("auto", "float32"):
        with pytest.raises(ResourceError, match=r"memory: weight_format bfloat16 would need 306"):
            get("org/tiny", weight_format=weight_format)
    for weight_format in ("bfloat16", "int4"):  # the first is what the message names
        assert get("org/tiny", weight_format=weight_format)


def test_names(small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolve_model(str(small_model))
    assert found.directory == small_model.resolve() and not found.is_demo
    assert found.name == str(small_model)
    with pytest.raises(UnsupportedModelError, match="is a file"):
        resolve_model(str(small_model / "config.json"))
    for name in ("./nowhere", "nowhere", "/no/where/at/all", "a/b/c"):
        with pytest.raises(ModelNotFoundError, match="there is no model directory"):
            resolve_model(name)
    monkeypatch.setattr(source, "files", lambda _: tmp_path)
    with pytest.raises(ModelNotFoundError, match="no demo model"):
        resolve_model(None)
    make_tiny_model(tmp_path / "demo")
    demo = resolve_model(None)
    assert (demo.name, demo.is_demo, demo.directory) == ("inlay-demo", True, tmp_path / "demo")
