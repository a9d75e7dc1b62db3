"""GGUF repositories: which files a quantisation's name brings, and what is said without one."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type

from inlay.core.errors import ModelError, ModelNotFoundError, ResourceError, UnsupportedModelError
from inlay.models import hub as hub_module
from inlay.models.hub import fetch
from inlay.models.hub_gguf import gguf_files
from inlay.models.model import load_model
from inlay.models.source import resolve_model
from tests.support.gguf_files import TOKENIZER, write_gguf
from tests.support.hub_server import HubServer
from tests.support.tiny_models import make_tiny_model

SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
PUBLISHED = dict.fromkeys(
    (
        "BF16/Model-30B-A3B-BF16-00001-of-00002.gguf",
        "BF16/Model-30B-A3B-BF16-00002-of-00002.gguf",
        "Model-30B-A3B-Q4_K_M.gguf",
        "Model-30B-A3B-UD-Q4_K_XL.gguf",
        "Model-30B-A3B-UD-Q2_K_XL.gguf",
        "Model-30B-A3B-Q2_K_XL.gguf",
        "model-mxfp4.gguf",
        "mmproj-F16.gguf",
        "imatrix_unsloth.gguf",
        "config.json",
        "README.md",
    ),
    10**9,
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("repository")
    floats = make_tiny_model(parent / "source", tokenizer="none", **SIZES)
    folder = parent / "files"
    (folder / "Q8_0").mkdir(parents=True)
    first = folder / "Q8_0" / "tiny-Q8_0-00001-of-00003.gguf"
    write_gguf(floats, first, Type.Q8_0, metadata=TOKENIZER, parts=3)
    write_gguf(floats, folder / "tiny-Q4_0.gguf", Type.Q4_0, metadata=TOKENIZER)
    (folder / "mmproj-F16.gguf").write_bytes(b"reads images")
    (folder / "README.md").write_text("A model.")
    return folder


@pytest.fixture
def hub(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "inlay"))
    with HubServer() as server:
        server.add("org/tiny-GGUF", repository)
        monkeypatch.setattr(hub_module, "fetch", partial(fetch, endpoint=server.url))
        yield server


def test_its_files_alone(hub: HubServer, tmp_path: Path) -> None:
    """All parts of one quantisation; the model loads from the hub's cache, also without network."""
    found = resolve_model("org/tiny-GGUF:q8_0", cache_dir=tmp_path / "cache")
    assert found.name == "org/tiny-GGUF:q8_0"
    assert load_model(found.directory).weight_format == "q8_0"
    assert {name for name, _ in hub.gets} == {
        f"Q8_0/tiny-Q8_0-0000{part}-of-00003.gguf" for part in (1, 2, 3)
    }
    transfers = len(hub.gets)
    for options in ({}, {"offline": True}):
        again = resolve_model("org/tiny-GGUF:Q8_0", cache_dir=tmp_path / "cache", **options)
        assert again.directory == found.directory and len(hub.gets) == transfers
    # What else is there is the only one in the cache.
    alone = resolve_model("org/tiny-GGUF", cache_dir=tmp_path / "cache", offline=True)
    assert alone.directory == found.directory
    with pytest.raises(ModelNotFoundError, match="in the cache has no quantisation Q4_0"):
        resolve_model("org/tiny-GGUF:Q4_0", cache_dir=tmp_path / "cache", offline=True)


def test_without_a_hub(hub: HubServer, tmp_path: Path) -> None:
    nowhere, cache = "http://127.0.0.1:9", tmp_path / "cache"
    file = fetch("org/tiny-GGUF", quant="Q4_0", endpoint=hub.url, cache_dir=cache)
    assert fetch("org/tiny-GGUF", quant="Q4_0", endpoint=nowhere, cache_dir=cache) == file
    with pytest.raises(ModelError, match="cannot be reached"):
        fetch("org/tiny-GGUF", quant="Q8_0", endpoint=nowhere, cache_dir=cache)


def test_what_there_is(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(
        ModelNotFoundError,
        match=r"org/tiny-GGUF has the quantisations Q8_0 \(.*B\), Q4_0 \(.*B\): name one, as in "
        r"org/tiny-GGUF:Q8_0",
    ):
        resolve_model("org/tiny-GGUF", cache_dir=tmp_path)
    with pytest.raises(ModelNotFoundError, match="no quantisation Q5_K_M; it has Q8_0"):
        resolve_model("org/tiny-GGUF:Q5_K_M", cache_dir=tmp_path)
    assert hub.gets == []


def test_an_architecture_that_is_not_read(hub: HubServer, tmp_path: Path) -> None:
    """Before anything is fetched, where the hub says what the files are."""
    repo = hub.repos["org/tiny-GGUF"]
    repo.gguf = {"architecture": "mamba", "total": 10**9}
    others = repo.files.pop("mmproj-F16.gguf")
    message = "org/tiny-GGUF, as the hub has it: architecture 'mamba' is not"
    with pytest.raises(UnsupportedModelError, match=message):
        fetch("org/tiny-GGUF", quant="Q8_0", endpoint=hub.url, cache_dir=tmp_path)
    assert hub.gets == []
    repo.gguf = {"architecture": "qwen3"}
    fetch("org/tiny-GGUF", quant="Q8_0", endpoint=hub.url, cache_dir=tmp_path)
    # It may have read what lies beside the models.
    repo.gguf = {"architecture": "clip"}
    repo.files["mmproj-F16.gguf"] = others
    fetch("org/tiny-GGUF", quant="Q4_0", endpoint=hub.url, cache_dir=tmp_path)


def test_what_does_not_fit(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "total_memory_bytes", lambda: 1000)
    with pytest.raises(ResourceError, match="of memory: name a smaller quantisation"):
        fetch("org/tiny-GGUF", quant="Q8_0", endpoint=hub.url, cache_dir=tmp_path)
    assert hub.gets == []


@pytest.mark.parametrize(
    ("quant", "files"),
    [
        ("bf16", [f"BF16/Model-30B-A3B-BF16-0000{n}-of-00002.gguf" for n in (1, 2)]),
        ("Q4_K_M", ["Model-30B-A3B-Q4_K_M.gguf"]),
        ("Q4_K_XL", ["Model-30B-A3B-UD-Q4_K_XL.gguf"]),
        ("UD-Q2_K_XL", ["Model-30B-A3B-UD-Q2_K_XL.gguf"]),
        ("Q2_K_XL", ["Model-30B-A3B-Q2_K_XL.gguf"]),
        ("MXFP4", ["model-mxfp4.gguf"]),
    ],
)
def test_names(quant: str, files: list[str]) -> None:
    assert gguf_files("org/name", PUBLISHED, quant) == files


def test_names_that_say_too_little() -> None:
    two = {"A-Q8_0.gguf": 1, "B-Q8_0.gguf": 1}
    with pytest.raises(ModelNotFoundError, match=r"2 models in Q8_0 \(A-Q8_0.gguf, B-Q8_0.gguf\)"):
        gguf_files("org/name", two, "Q8_0")
    with pytest.raises(ModelNotFoundError, match="no GGUF files whose names say"):
        gguf_files("org/name", {"model.gguf": 1, "mmproj-F16.gguf": 1}, "F16")


def test_modelscope() -> None:
    with pytest.raises(UnsupportedModelError, match="download those of Q8_0, and name the first"):
        resolve_model("modelscope:org/name:Q8_0")
