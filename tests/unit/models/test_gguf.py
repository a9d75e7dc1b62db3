"""GGUF files: logits of what they hold, their tokenizers, and what is said of damaged ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.models.gguf import gguf_directory
from inlay.models.model import load_model
from inlay.models.source import resolve_model
from inlay.models.text import Text
from tests.support.gguf_files import write_gguf
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model
from tests.unit.models.reference import load_reference, reference_logits, relative_error

EMBEDDING = "model.embed_tokens.weight"
TOKENS = [5, 400, 33, 2, 17, 250, 9, 8, 301, 77, 140]
SIZES = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama_untied": {"architecture": "llama", "tie_word_embeddings": False},
    "mixtral": {"architecture": "mixtral"},
    "qwen3": {"architecture": "qwen3", "tie_word_embeddings": False},
    "qwen3_moe": {"architecture": "qwen3_moe", "moe_intermediate_size": 256},
}
FORMATS = {
    Type.F32: "float32",
    Type.F16: "float32",
    Type.BF16: "bfloat16",
    Type.Q8_0: "int8:g32",
    Type.Q4_0: "int4:g32",
    Type.Q4_K: "int4:g32",
}
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<|end|>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 3,
}


def logits(directory: Path, **options: Any) -> torch.Tensor:
    return ModelDriver(load_model(directory, **options)).prefill(TOKENS, (4,))


def written(tmp_path: Path, kind: Type, **config: Any) -> tuple[Path, Path]:
    """A GGUF's directory, and one with the floats that it stands for."""
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES | config)
    meant = write_gguf(source, tmp_path / "model.gguf", kind, metadata=TOKENIZER)
    if kind not in (Type.F32, Type.F16):  # the table is kept in bfloat16
        meant[EMBEDDING] = meant[EMBEDDING].bfloat16().float()
    floats = tmp_path / "floats"
    floats.mkdir()
    (floats / "config.json").write_text((source / "config.json").read_text())
    save_file(meant, floats / "model.safetensors", metadata={"format": "pt"})
    return gguf_directory(tmp_path / "model.gguf", cache_dir=tmp_path / "cache"), floats


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0, Type.Q4_0, Type.Q4_K], ids=lambda k: k.name)
def test_logits_of_what_it_stands_for(tmp_path: Path, case: str, kind: Type) -> None:
    directory, floats = written(tmp_path, kind, **CASES[case])
    expected = reference_logits(load_reference(floats), TOKENS)
    for backend in ("native", "torch"):
        actual = logits(directory, weight_format="float32", backend=backend)
        assert relative_error(actual, expected) < 1e-4


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_how_it_is_held(tmp_path: Path, kind: Type) -> None:
    """Codes are taken over, scales rounded to bfloat16; what has no codes of ours is rounded."""
    directory, floats = written(tmp_path, kind, **CASES["qwen3_moe"])
    model = load_model(directory)
    assert model.weight_format == FORMATS[kind]
    layer, meant = model._decoder._weights.layers[1], load_file(floats / "model.safetensors")
    names = [f"model.layers.1.mlp.experts.3.{part}_proj.weight" for part in ("gate", "up", "down")]
    held = dict(zip(names, layer.mlp.experts.dequantize(3), strict=True))
    held["model.layers.1.self_attn.o_proj.weight"] = layer.attention.output.weight.dequantize()
    bound = {Type.Q8_0: 2**-8, Type.Q4_0: 2**-8, Type.Q4_K: 0.15}.get(kind, 0)
    for name, values in held.items():
        wanted = meant[name].numpy()
        assert np.abs(values - wanted).max() <= bound * np.abs(wanted).max(), name


def test_a_file_in_parts(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    first = tmp_path / "m-00001-of-00002.gguf"
    write_gguf(source, first, Type.F32, metadata=TOKENIZER)
    with pytest.raises(ModelNotFoundError, match=r"lacks m-00002-of-00002\.gguf \(1 of 2 files\)"):
        gguf_directory(first, cache_dir=tmp_path / "cache")


def test_a_name_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "cache"))
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    write_gguf(source, tmp_path / "model.gguf", Type.Q8_0, metadata=TOKENIZER)
    found = resolve_model(str(tmp_path / "model.gguf"))
    assert found.directory.parent == tmp_path / "cache" / "gguf"
    assert resolve_model(str(tmp_path / "model.gguf")).directory == found.directory
    (tmp_path / "model.gguf").touch()
    assert resolve_model(str(tmp_path / "model.gguf")).directory != found.directory


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_its_tokenizer(tmp_path: Path, kind: str) -> None:
    """The same tokens as the makers' tokenizer gives."""
    source = make_tiny_model(tmp_path / "source", tokenizer=kind, architecture="llama", **SIZES)
    write_gguf(source, tmp_path / "model.gguf", Type.Q8_0, metadata=_metadata_of(source, kind))
    directory = gguf_directory(tmp_path / "model.gguf", cache_dir=tmp_path / "cache")
    theirs, ours = Text.load(source), Text.load(directory)
    assert ours.chat_template == theirs.chat_template
    assert ours.eos_token_ids >= {
        int(json.loads((source / "config.json").read_text())["eos_token_id"])
    }
    for text in (
        "The lantern hangs above the door.", "def add(a, b):\n    return a + b\n\n",
        "  two  spaces", "你好 🙂 Grüße", "<|im_start|>user\nhi<|im_end|>", "1234567 89",
        "It's we'll",
    ):  # fmt: skip
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))


def _metadata_of(source: Path, kind: str) -> dict[str, Any]:
    made = json.loads((source / "tokenizer.json").read_text())
    vocabulary = dict(made["model"]["vocab"])
    special = {one["content"]: one for one in made["added_tokens"]}
    vocabulary |= {content: one["id"] for content, one in special.items()}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    types = [
        1 if token not in special else 3 if special[token]["special"] else 4 for token in tokens
    ]
    merges = [
        " ".join(pair) if isinstance(pair, list) else pair for pair in made["model"]["merges"]
    ]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.chat_template": (source / "chat_template.jinja").read_text(),
    }
    config = json.loads((source / "tokenizer_config.json").read_text())
    for key, theirs in (("bos", "bos_token"), ("eos", "eos_token")):
        if config.get(theirs):
            metadata[f"tokenizer.ggml.{key}_token_id"] = tokens.index(config[theirs])
    if kind == "sentencepiece":
        ranks = {"".join(pair.split(" ")): -float(n) for n, pair in enumerate(merges)}
        return metadata | {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": [float(ranks.get(token, -1e6)) for token in tokens],
            "tokenizer.ggml.unknown_token_id": tokens.index("<unk>"),
        }
    return metadata | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": True,
    }


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (
            {"general.architecture": "gpt2"},
            UnsupportedModelError,
            "architecture 'gpt2' is not read",
        ),
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedModelError, "tokenizer 'rwkv' is not read"),
        ({"tokenizer.ggml.pre": "new"}, UnsupportedModelError, "pre 'new' is not known"),
        ({"tokenizer.ggml.eos_token_id": 9}, ModelFileError, "is 9, and there are 4 tokens"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, metadata: dict[str, Any], error: type[Exception], message: str
) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    write_gguf(source, tmp_path / "model.gguf", Type.Q8_0, metadata=TOKENIZER | metadata)
    with pytest.raises(error, match=message):
        gguf_directory(tmp_path / "model.gguf", cache_dir=tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())


def test_damaged_files(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **SIZES)
    file = tmp_path / "model.gguf"
    write_gguf(source, file, Type.Q8_0, metadata=TOKENIZER)
    data = file.read_bytes()
    for damaged in (data[:-1000], data[:20], b"", b"x" + data[1:], data[:4] + b"\x63" + data[5:]):
        file.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="cannot be read as GGUF"):
            gguf_directory(file, cache_dir=tmp_path / "cache")
