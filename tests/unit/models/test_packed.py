"""Directories with packed weights: the same logits, and what is said when something is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from inlay import kernels
from inlay.core.errors import (
    ArgumentError,
    ModelFileError,
    ModelNotFoundError,
    ResourceError,
    UnsupportedModelError,
)
from inlay.models.conversion import staging
from inlay.models.conversion.convert import convert
from inlay.models.model import Model, load_model
from inlay.models.packed_metadata import PACKED_FILE
from inlay.serve.doctor.weights import check_weights
from tests.support.model_driver import ModelDriver
from tests.support.packed_files import write_packed
from tests.support.tiny_models import make_tiny_model

CASES: dict[str, dict[str, Any]] = {
    "moe": {"architecture": "qwen3_moe", "dtype": "bfloat16"},
    "mixed": {"architecture": "qwen3_moe", "decoder_sparse_step": 2, "tie_word_embeddings": False},
    "bias": {"architecture": "llama", "attention_bias": True, "mlp_bias": True, "dtype": "float16"},
    "latents": {"architecture": "deepseek_v3", "dtype": "bfloat16"},
    "latents_bias": {"architecture": "deepseek_v2", "q_lora_rank": 20, "attention_bias": True},
    "partial": {"architecture": "glm4_moe", "dtype": "bfloat16"},
    "sinks": {"architecture": "gpt_oss"},
}


def logits(model: Model) -> torch.Tensor:
    return ModelDriver(model).prefill([1, 2, 3, 400, 5], (3,))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "source", "qwen3_moe", dtype="bfloat16")


@pytest.fixture
def target(tmp_path: Path, source: Path) -> Path:
    convert(source, tmp_path / "target", weight_format="int4")
    return tmp_path / "target"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "weight_format", ["auto", "int8", "int8:g32", "int4", "int4:g128", "int4+bf16", "bf16+int4:g64"]
)
def test_same_bits_as_quantised_at_load(tmp_path: Path, case: str, weight_format: str) -> None:
    source = make_tiny_model(tmp_path / "source", tokenizer="none", **CASES[case])
    convert(source, tmp_path / "target", weight_format=weight_format)
    quantised = load_model(source, weight_format=weight_format)
    mapped = load_model(tmp_path / "target")
    assert torch.equal(logits(mapped).view(torch.int32), logits(quantised).view(torch.int32))
    assert mapped.weight_format == quantised.weight_format
    assert mapped.fingerprint == quantised.fingerprint
    assert mapped.kv_format() == quantised.kv_format()
    assert load_model(tmp_path / "target", weight_format=weight_format).shape == quantised.shape


def test_what_a_directory_holds(source: Path, tmp_path: Path) -> None:
    others = {file.name for file in source.iterdir()} - {"model.safetensors"}
    (source / "pytorch_model.bin").write_text("other weights")
    (source / "merges.txt").write_text("a b")
    with (source / "model.onnx").open("w") as large:
        large.truncate(200 << 20)
    target = tmp_path / "target"
    convert(source, target)
    assert {file.name for file in target.iterdir()} == others | {"merges.txt", PACKED_FILE}
    kernels.PackedFile(target / PACKED_FILE).verify()


def test_weights_are_mapped(target: Path) -> None:
    """Two loads of one file share its memory, so a load copies nothing."""
    one, other = (load_model(target)._decoder._stages[0]._weights for _ in range(2))
    assert not one.embedding.rows_VM.flags.owndata and not one.embedding.rows_VM.flags.writeable
    for weights in (one, other):
        with pytest.raises(ArgumentError, match="mapped from a file and cannot be changed"):
            weights.head.weights[0].set_rows(0, torch.zeros(1, 64).numpy())


def test_a_damaged_file_is_refused(target: Path) -> None:
    file = target / PACKED_FILE
    data = file.read_bytes()
    for damaged, message in (
        (data[:-1], "is truncated: it holds"),
        (data[:10], "is truncated"),
        (b"", "is not a file of packed weights"),
        (b"x" + data[1:], "is not a file of packed weights"),
        (data[:-1] + b"x", "its table of entries is damaged"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=message):
            load_model(target)


def test_damaged_weights_are_found_when_asked_for(target: Path) -> None:
    load_model(target, verify=True)
    file = target / PACKED_FILE
    data = bytearray(file.read_bytes())
    panels = kernels.PackedFile(file).linear("layers.1.attention.qkv").panels().tobytes()
    data[data.index(panels) + len(panels) // 2] ^= 1
    file.write_bytes(data)
    load_model(target)
    with pytest.raises(
        ModelFileError, match=r"'layers.1.attention.qkv' \(panels\) do not fit their checksum"
    ):
        load_model(target, verify=True)
    check = check_weights(target)
    assert check.size_bytes == len(data)
    assert check.problem is not None and "do not fit their checksum" in check.problem
    with pytest.raises(ModelNotFoundError, match="only packed weights carry checksums"):
        check_weights(target.parent / "source")


def test_another_config_is_refused(target: Path) -> None:
    file = target / "config.json"
    config = json.loads(file.read_text())
    for changes, message in (
        ({"rope_theta": 5000.0}, r"belongs to another model.*rope .*'theta': 5000\.0"),
        ({"num_hidden_layers": 3}, "layers 2 instead of 3"),
    ):
        file.write_text(json.dumps(config | changes))
        with pytest.raises(ModelFileError, match=message):
            load_model(target)


def test_entries_that_do_not_fit_are_refused(target: Path) -> None:
    file = target / PACKED_FILE
    good = kernels.PackedFile(file)
    for left_out, replaced, message in (
        (
            "layers.1.attention.qkv",
            None,
            "nothing under 'layers.1.attention.qkv': convert the model again",
        ),
        ("head", (512, 32, "int8"), r"head is \[512, 32, 'int8'\] instead of \[512, 64, "),
        ("layers.0.mlp.router", (9, 64, "bfloat16"), r"router is \[9, 64, .* instead of \[8, 64"),
        ("head", (512, 64, "int4:g32"), r"\[512, 64, 'int4:g32'\] instead of .* 'int8'\]"),
    ):
        weights: dict[str, Any] = {}
        for name in good.names:
            if name == left_out:
                if replaced:
                    weights[name] = kernels.LinearWeight(*replaced)
            elif name.endswith(("_VM", "_M", "_D")):
                weights[name] = good.array(name)
            elif name.endswith("experts"):
                weights[name] = good.experts(name)
            else:
                weights[name] = good.linear(name)
        write_packed(target / "new", weights, good.metadata)
        (target / "new").replace(file)
        with pytest.raises(ModelFileError, match=message):
            load_model(target)
    write_packed(file, {})
    with pytest.raises(ModelFileError, match="lacks 'shape', it is no packed model"):
        load_model(target)


def test_what_packed_weights_cannot_do(target: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"as int4:g32, and weight_format 'int8' was"):
        load_model(target, weight_format="int8")
    with pytest.raises(UnsupportedModelError, match="packed for the CPU kernels, not for PyTorch"):
        load_model(target, backend="torch")


def test_what_cannot_be_packed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArgumentError, match="is the source, too"):
        convert(source, source, weight_format="int8")
    with pytest.raises(UnsupportedModelError, match="'q4_k' is not supported with the CPU"):
        convert(source, tmp_path / "new", weight_format="q4_k")
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ResourceError, match="needs .* of disk, and 1000 B are free"):
        convert(source, tmp_path / "new", weight_format="int8")
