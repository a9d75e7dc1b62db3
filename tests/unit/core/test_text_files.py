"""JSON files as they come: with a byte-order mark, as pointers of Git LFS, or damaged."""

from pathlib import Path

import pytest

from inlay.core.errors import ModelFileError
from inlay.core.model_config import read_shape
from inlay.core.tables import read_toml
from inlay.core.text_files import read_json_object
from inlay.experts.rules import read_rules
from inlay.models.gguf import gguf_directory
from inlay.models.model import load_model
from inlay.models.text import Text
from inlay.tune.config_file import read_config
from tests.support.tiny_models import make_tiny_model

BOM = b"\xef\xbb\xbf"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4976698672\n"
JSON_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", shards=2)
    shape, ends = read_shape(model), Text.load(model).eos_token_ids
    for name in (*JSON_FILES[:3], "model.safetensors.index.json"):
        (model / name).write_bytes(BOM + (model / name).read_bytes())
    assert read_shape(model) == shape and Text.load(model).eos_token_ids == ends
    load_model(model)


@pytest.mark.parametrize("name", [*JSON_FILES, "model.safetensors"])
def test_a_pointer_is_named_as_one(tmp_path: Path, name: str) -> None:
    model = make_tiny_model(tmp_path / "model")
    (model / name).write_bytes(POINTER)
    with pytest.raises(ModelFileError, match=rf"{name} is a pointer of Git LFS.*git lfs pull"):
        load_model(model)
        Text.load(model)


def test_a_pointer_in_place_of_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(POINTER)
    with pytest.raises(ModelFileError, match=r"model\.gguf is a pointer of Git LFS"):
        gguf_directory(tmp_path / "model.gguf", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is no JSON .*: write it again"),
        (b"[" * 100_000, "is no JSON .*: write it again"),
        (b'{"a": "\xff"}', r"line 1: is not UTF-8 .byte 0xff at 7.: save it as UTF-8"),
        (b"[1]", "holds a list, not a JSON object"),
        (b"", "line 1: is no JSON .*: write it again"),
    ],
)
def test_what_is_no_object(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        read_json_object(file, remedy="write it again")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_settings_in_other_languages_may_have_a_mark_too(tmp_path: Path, end: str) -> None:
    rules, toml = 'match: {name: "a"}', '[a]\nb = "c"\n'
    texts = {"a.yaml": f"- {rules}\n  replace: {{class: default}}\n", "a.toml": toml}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(BOM + text.replace("\n", end).encode())
    assert read_toml(tmp_path / "a.toml") == {"a": {"b": "c"}}
    (rule,) = read_rules(tmp_path / "a.yaml")
    assert rule.line == 1
    (tmp_path / "run.yaml").write_bytes(BOM + f"model_name_or_path: m{end}seed: 7{end}".encode())
    assert read_config(tmp_path / "run.yaml").config.seed == 7
