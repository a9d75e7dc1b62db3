"""What a GGUF file's metadata say of well-known models: the same as their makers' config.json."""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.core.known_models import known_config, known_models
from inlay.core.model_config import shape_of
from inlay.models.gguf.config import config_of
from inlay.models.gguf.reader import GgufFile
from tests.support.gguf_files import ARCHITECTURES, add_metadata, metadata_of

# What files of before autumn 2025 leave out.
LATER = ("expert_group_count", "expert_group_used_count", "yarn_beta_fast", "yarn_beta_slow")
# A table of the file stretches Llama 3.1's positions; test_gguf_logits has one.
STRETCHED_BY_TABLE = {"llama-3.1-8b", "llama-3.1-70b"}
MODELS = sorted(set(known_models()) - STRETCHED_BY_TABLE)


def header(
    file: Path, config: dict[str, Any], *, without: tuple[str, ...] = (), **changes: Any
) -> GgufFile:
    """A file of which only the metadata and the tensors' list are read; the rest is a hole."""
    kind = "deepseek_v3" if config["model_type"] == "kimi_k2" else config["model_type"]
    name = ARCHITECTURES[kind]
    metadata = metadata_of(config | {"model_type": kind}, name, split_latent=True)
    metadata |= {f"{name}.{key}": value for key, value in changes.items()}
    writer = gguf.GGUFWriter(file, name)
    for key, value in metadata.items():
        if not key.endswith(without) and value is not None:
            add_metadata(writer, key, value)
    tensors = {"token_embd.weight": (config["vocab_size"], 256)}
    if not config.get("tie_word_embeddings"):
        tensors["output.weight"] = (8, 256)
    if config.get("attention_bias"):
        tensors["blk.0.attn_q.bias"] = (8,)
    if config.get("use_qk_norm"):
        tensors["blk.0.attn_q_norm.weight"] = (8,)
    for tensor, shape in tensors.items():
        size = 4 * int(np.prod(shape))
        writer.add_tensor_info(tensor, shape, np.dtype("f4"), size, raw_dtype=Type.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    room = 64 + sum(4 * 256 * shape[0] for shape in tensors.values())  # data are aligned
    os.truncate(file, file.stat().st_size + room)
    return GgufFile(file)


@pytest.mark.parametrize("older", [False, True], ids=["now", "older"])
@pytest.mark.parametrize("name", MODELS)
def test_known_models(tmp_path: Path, name: str, older: bool) -> None:
    config = known_config(name)
    assert config is not None
    file = header(tmp_path / "model.gguf", config, without=LATER if older else ())
    found, makers = shape_of(config_of(file)), shape_of(config)
    assert found.quantization is not None and found.quantization.method == "gguf"
    if makers.architecture == "kimi_k2":  # another name of the same layers
        makers = replace(makers, architecture="deepseek_v3")
    expected = replace(makers, quantization=found.quantization, dtype=found.dtype)
    same(asdict(found), asdict(expected))


def same(found: Any, expected: Any) -> None:
    """Metadata are float32."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            same(found[key], value)
    else:
        assert found == (pytest.approx(expected, rel=1e-6) if type(expected) is float else expected)


def test_a_factor_of_attention(tmp_path: Path) -> None:
    config = known_config("gpt-oss-20b")
    assert config is not None
    changes = {"rope.scaling.yarn_attn_factor": 1.25}
    file = header(tmp_path / "model.gguf", config, **changes)
    assert shape_of(config_of(file)).rope.attention_factor == 1.25


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("deepseek-v2", {"expert_gating_func": 4}, UnsupportedModelError, "gating_func 4"),
        ("deepseek-v2", {"expert_weights_norm": True}, UnsupportedModelError, "weights_norm True"),
        ("glm-4.5", {"expert_gating_func": 1}, UnsupportedModelError, "is none of glm4_moe"),
        (
            "deepseek-v3",
            {"attention.temperature_scale": 0.1},
            UnsupportedModelError,
            "attention.temperature_scale",
        ),
        ("qwen3-8b", {"block_count": None}, ModelFileError, "metadata for num_hidden_layers"),
        ("qwen3-8b", {"block_count": "36"}, ModelFileError, "block_count is '36'"),
        ("deepseek-v3", {"rope.dimension_count": 500}, ModelFileError, "qk_nope_head_dim is -308"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    config = known_config(name)
    assert config is not None
    with pytest.raises(error, match=message):
        shape_of(config_of(header(tmp_path / "model.gguf", config, **changes)))
