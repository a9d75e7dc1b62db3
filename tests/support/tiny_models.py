"""Tiny random models as ordinary Hugging Face directories, made without `transformers`.

    from tests.support.tiny_models import make_tiny_model
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe", num_hidden_layers=3)

A directory holds config.json, generation_config.json, safetensors shards, tokenizer.json,
tokenizer_config.json and chat_template.jinja. The weights are random but wide enough
(`initializer_range` 0.2) that greedy text does not fall into a loop of one token.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.tiny_tokenizers import write_tokenizer

_LATENT: dict[str, Any] = {
    "attention_bias": False,
    "rope_theta": 10000.0,
    "num_key_value_heads": 4,
    "head_dim": ...,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v2": _LATENT
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "n_shared_experts": 2,
        "topk_method": "greedy",
        "q_lora_rank": None,
    },
    "deepseek_v3": _LATENT
    | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
    "glm4_moe": {
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "use_qk_norm": True,
        "rms_norm_eps": 1e-5,
    },
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "sliding_window": 12,
        "rope_theta": 150000.0,
        "rms_norm_eps": 1e-5,
    },
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "rope_theta": 10000.0,
        "sliding_window": None,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "rms_norm_eps": 1e-5,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "head_dim": ...,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 3,
    },
}
# Where files have other names than the rest: pieces of names, and what they are there.
_RENAMED: dict[str, dict[str, str]] = {
    "mixtral": {
        ".mlp.": ".block_sparse_moe.",
        "gate_proj": "w1",
        "up_proj": "w3",
        "down_proj": "w2",
    }
}
_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "use_cache": True,
}


def make_tiny_model(
    directory: Path | str,
    architecture: str = "qwen3_moe",
    *,
    seed: int = 0,
    dtype: str = "float32",
    tokenizer: str = "byte_level",
    expert_names: str = "per_expert",
    shards: int = 1,
    **config: Any,
) -> Path:
    """Write a random model directory and return its path.

    Args:
        directory: made if missing.
        architecture: a key of `_CONFIGS`, such as `qwen3_moe`.
        seed: of the weights.
        dtype: of the weights: `float32`, `bfloat16` or `float16`.
        tokenizer: a kind of `write_tokenizer`, or `none` to leave tokenizer and template out.
        expert_names: `per_expert` (as published) or `fused` (`experts.gate_up_proj`).
        shards: number of safetensors files; above 1 with an index.
        config: overrides and additions to config.json; a value of `...` drops the key.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    settings = _COMMON | _CONFIGS[architecture] | {"model_type": architecture, "torch_dtype": dtype}
    settings |= {"bos_token_id": 0, "eos_token_id": 2} | config
    settings = {key: value for key, value in settings.items() if value is not ...}
    _write_json(directory / "config.json", settings)
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": [2, 0], "do_sample": True, "temperature": 0.7},
    )
    if tokenizer != "none":
        write_tokenizer(directory, tokenizer, settings["vocab_size"], bos=architecture == "llama")
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(settings, expert_names):
        tensor = torch.randn(shape, generator=generator) * settings["initializer_range"]
        if name.endswith(("norm.weight", "layernorm.weight")):
            # Wide q and k norms make attention sharp enough that text depends on its past.
            wide = name.endswith(("q_norm.weight", "k_norm.weight"))
            tensor = (2 if wide else 1) + 0.5 * tensor
        tensors[name] = tensor.to(getattr(torch, dtype))
    write_shards(directory, tensors, shards)
    return directory


def tensor_shapes(
    config: dict[str, Any], expert_names: str = "per_expert"
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors that a checkpoint of this config holds."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        attention = _latent_attention if "kv_lora_rank" in config else _attention
        for name, shape in attention(config):
            yield f"{layer}.self_attn.{name}", shape
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        mixture = _mixture(config, expert_names) if _is_sparse(config, i) else _mlp(config)
        for name, shape in mixture:
            yield _renamed(f"{layer}.mlp.{name}", config["model_type"]), shape
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (vocab, hidden)


def _renamed(name: str, architecture: str) -> str:
    for old, new in _RENAMED.get(architecture, {}).items():
        name = name.replace(old, new)
    return name


def _attention(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q_rows, kv_rows = heads * head_dim, config["num_key_value_heads"] * head_dim
    for part, shape in {
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "o": (hidden, q_rows),
    }.items():
        yield f"{part}_proj.weight", shape
        kind = config["model_type"]
        if config.get("attention_bias", kind == "qwen2") and not (
            part == "o" and kind in ("glm4_moe", "qwen2")
        ):
            yield f"{part}_proj.bias", shape[:1]
    if config["model_type"].startswith("qwen3") or config.get("use_qk_norm"):
        yield "q_norm.weight", (head_dim,)
        yield "k_norm.weight", (head_dim,)
    if config["model_type"] == "gpt_oss":
        yield "sinks", (heads,)


def _latent_attention(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, bias = (
        config[key] for key in ("hidden_size", "num_attention_heads", "attention_bias")
    )
    nope, rope, value = (
        config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    q_rows = heads * (nope + rope)
    if q_rank is None:
        yield "q_proj.weight", (q_rows, hidden)
    else:
        yield "q_a_proj.weight", (q_rank, hidden)
        if bias:
            yield "q_a_proj.bias", (q_rank,)
        yield "q_a_layernorm.weight", (q_rank,)
        yield "q_b_proj.weight", (q_rows, q_rank)
    yield "kv_a_proj_with_mqa.weight", (kv_rank + rope, hidden)
    if bias:
        yield "kv_a_proj_with_mqa.bias", (kv_rank + rope,)
    yield "kv_a_layernorm.weight", (kv_rank,)
    yield "kv_b_proj.weight", (heads * (nope + value), kv_rank)
    yield "o_proj.weight", (hidden, heads * value)
    if bias:
        yield "o_proj.bias", (hidden,)


def _is_sparse(config: dict[str, Any], layer: int) -> bool:
    if config["model_type"] == "qwen3_moe":
        step = config.get("decoder_sparse_step", 1)
        return layer not in (config.get("mlp_only_layers") or []) and (layer + 1) % step == 0
    if "num_local_experts" in config:
        return True
    return layer >= config.get("first_k_dense_replace", config["num_hidden_layers"])


def _mlp(
    config: dict[str, Any], name: str = "", width: int = 0
) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, width = config["hidden_size"], width or config["intermediate_size"]
    for part, shape in {
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
    }.items():
        yield f"{name}{part}_proj.weight", shape
        if config.get("mlp_bias"):
            yield f"{name}{part}_proj.bias", shape[:1]


def _mixture(config: dict[str, Any], expert_names: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config["hidden_size"]
    if config["model_type"] == "gpt_oss":
        experts, width = config["num_local_experts"], config["intermediate_size"]
        yield "router.weight", (experts, hidden)
        yield "router.bias", (experts,)
        yield "experts.gate_up_proj", (experts, hidden, 2 * width)
        yield "experts.gate_up_proj_bias", (experts, 2 * width)
        yield "experts.down_proj", (experts, width, hidden)
        yield "experts.down_proj_bias", (experts, hidden)
        return
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = next(config[key] for key in keys if key in config)
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    yield "gate.weight", (experts, hidden)
    if config["model_type"] in ("deepseek_v3", "glm4_moe"):
        yield "gate.e_score_correction_bias", (experts,)
    if config.get("n_shared_experts"):
        yield from _mlp(config, "shared_experts.", config["n_shared_experts"] * width)
    if expert_names == "fused":
        yield "experts.gate_up_proj", (experts, 2 * width, hidden)
        yield "experts.down_proj", (experts, hidden, width)
        return
    for e in range(experts):
        yield from _mlp(config, f"experts.{e}.", width)


def write_shards(directory: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> None:
    """Write `model.safetensors`, or that many shards and their index."""
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    step = math.ceil(len(names) / shards)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard * step : (shard + 1) * step]
        save_file({name: tensors[name] for name in part}, directory / file)
        weight_map.update(dict.fromkeys(part, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2), "utf-8")
