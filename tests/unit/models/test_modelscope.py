"""Names of ModelScope, with a stand-in for its package: what is fetched, refused, and said."""

import shutil
import sys
from pathlib import Path

import pytest

from inlay.core.errors import (
    ModelError,
    ModelNotFoundError,
    ResourceError,
    UnsupportedModelError,
)
from inlay.models.modelscope import fetch_config
from inlay.models.source import resolve_model
from tests.support.quantized_files import quantize_files
from tests.support.tiny_models import make_tiny_model


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The files that ModelScope is asked for; it has one model, at `tmp_path`, revision v1."""
    asked: list[list[str]] = []

    class Fake:
        @staticmethod
        def snapshot_download(name: str, *, allow_patterns: list[str], **options: object) -> str:
            if name == "org/missing":
                raise RuntimeError("no such model")
            assert options["revision"] == "v1" and options["local_files_only"] is False
            asked.append(allow_patterns)
            return str(tmp_path)

    monkeypatch.setitem(sys.modules, "modelscope", Fake)
    return asked


def test_the_package_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(UnsupportedModelError, match=r"pip install 'inlay\[modelscope\]'"):
        resolve_model("modelscope:org/name")


def test_small_files_come_first(asked: list[list[str]], tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    assert resolve_model("modelscope:org/name@v1").directory == tmp_path
    assert [("*.safetensors" in patterns) for patterns in asked] == [False, True]


def test_refused_before_the_download(
    asked: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_model(tmp_path)
    monkeypatch.setattr("inlay.models.hub.total_memory_bytes", lambda: 1000)
    with pytest.raises(ResourceError, match=r"modelscope:org/name@v1 .* of memory"):
        resolve_model("modelscope:org/name@v1")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UnsupportedModelError, match="bert"):
        resolve_model("modelscope:org/name@v1")
    assert len(asked) == 2
    with pytest.raises(ModelError, match="no such model"):
        resolve_model("modelscope:org/missing")
    with pytest.raises(ModelNotFoundError, match="modelscope:org/name"):
        resolve_model("modelscope:name")


@pytest.mark.usefixtures("asked")
def test_quantised_files_take_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with room for them, and not for as many floats of two bytes, is enough."""
    source = make_tiny_model(
        tmp_path / "source", "gpt_oss", tokenizer="none", dtype="bfloat16", num_local_experts=32
    )
    quantize_files(source, tmp_path / "quantized", tmp_path / "floats", "mxfp4")
    needed = (tmp_path / "quantized" / "model.safetensors").stat().st_size
    shutil.copy(tmp_path / "quantized" / "config.json", tmp_path)
    monkeypatch.setattr("inlay.models.hub._SPARE_DISK_BYTES", 0)

    def leave(free: int) -> None:
        usage = shutil.disk_usage("/")._replace(free=free)
        monkeypatch.setattr("inlay.models.hub.shutil.disk_usage", lambda _: usage)

    leave(needed // 2)
    with pytest.raises(ResourceError, match="of disk.*MODELSCOPE_CACHE"):
        resolve_model("modelscope:org/name@v1")
    leave(needed)
    assert resolve_model("modelscope:org/name@v1").directory == tmp_path


def test_a_plan_needs_config_json_alone(asked: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="has no config.json"):
        fetch_config("org/name", revision="v1")
    make_tiny_model(tmp_path)
    assert fetch_config("org/name", revision="v1")["model_type"] == "qwen3_moe"
    assert asked == [["config.json"]] * 2
