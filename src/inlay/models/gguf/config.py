"""config.json for a GGUF file: its metadata under the names that the makers' files use."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.models.gguf.reader import GgufFile

# `general.architecture`, and the `model_type` that has its layers.
_MODEL_TYPES = {"llama": "llama", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "context_length": "max_position_embeddings",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
# Where most weights are of a type, the kernels' format that holds as much of them.
_FORMATS = {
    Type.F32: "float32",
    Type.F16: "float32",
    Type.BF16: "bfloat16",
    Type.Q8_0: "int8:g32",
    Type.Q6_K: "int8:g32",
    Type.Q5_K: "int8:g32",
    Type.Q5_0: "int8:g32",
    Type.Q5_1: "int8:g32",
}
_SMALLEST = "int4:g32"
# Llama 3.1 and later: frequencies are stretched by a table, made from these and its largest value.
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config_of(file: GgufFile) -> dict[str, Any]:
    """What config.json would say.

    Raises:
        ModelFileError: metadata are missing.
        UnsupportedModelError: an architecture that is not read from GGUF, or such positions.
    """
    given = file.metadata
    name = given.get("general.architecture")
    if name not in _MODEL_TYPES:
        raise UnsupportedModelError(
            f"{file.files[0].name}: architecture {name!r} is not read from GGUF; read are "
            f"{', '.join(_MODEL_TYPES)}: take the model's *.safetensors, or add its row to "
            "inlay/models/gguf/config.py"
        )
    config: dict[str, Any] = {
        key: given[f"{name}.{theirs}"]
        for theirs, key in _KEYS.items()
        if f"{name}.{theirs}" in given
    }
    if missing := [key for key in ("num_hidden_layers", "hidden_size") if key not in config]:
        raise ModelFileError(f"{file.files[0]} lacks the metadata for {missing[0]}")
    config["model_type"] = _MODEL_TYPES[name]
    if name == "llama" and config.get("num_experts"):
        config["model_type"] = "mixtral"
    if name == "qwen3moe":
        config["norm_topk_prob"] = True
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.files[0]} lacks token_embd.weight: download it again")
    config["vocab_size"] = int(embedding.shape[1])
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["rope_scaling"] = _rope_scaling(file, name, config)
    config["torch_dtype"] = "bfloat16"
    config["quantization_config"] = {"quant_method": "gguf", "weight_format": _format_of(file)}
    for key, ours in (("bos", "bos_token_id"), ("eos", "eos_token_id")):
        if (token := given.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[ours] = int(token)
    return config


def _format_of(file: GgufFile) -> str:
    bytes_of: Counter[str] = Counter()
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            bytes_of[_FORMATS.get(tensor.tensor_type, _SMALLEST)] += int(tensor.n_elements)
    return bytes_of.most_common(1)[0][0]


def _rope_scaling(file: GgufFile, name: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    given = file.metadata
    kind = given.get(f"{name}.rope.scaling.type", "none")
    factor = given.get(f"{name}.rope.scaling.factor", 1.0)
    if kind in ("linear", "yarn") and factor != 1.0:
        scaling = {"rope_type": kind, "factor": float(factor)}
        if kind == "yarn":
            original = given.get(f"{name}.rope.scaling.original_context_length")
            scaling["original_max_position_embeddings"] = int(original or 0)
        return scaling
    if "rope_freqs.weight" not in file.tensors:
        return None
    table = np.asarray(file.tensors["rope_freqs.weight"].data, np.float32)
    scaling = _LLAMA3 | {"factor": float(table.max())}
    if not np.allclose(table, _llama3_table(scaling, config, len(table)), rtol=1e-3):
        raise UnsupportedModelError(
            f"{file.files[0].name}: its table of rotary frequencies is none of Llama 3's, and no "
            "other is read from GGUF: take the model's *.safetensors"
        )
    return scaling


def _llama3_table(
    scaling: Mapping[str, Any], config: Mapping[str, Any], count: int
) -> np.ndarray[Any, Any]:
    """What the frequencies are divided by. Source: Llama 3.1's own code."""
    theta = float(config.get("rope_theta", 10000.0))
    wavelengths = 2 * np.pi * theta ** (np.arange(count) / count)
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    table: np.ndarray[Any, Any] = 1 / ((1 - smooth) / factor + smooth)
    return table
