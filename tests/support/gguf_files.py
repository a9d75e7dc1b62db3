"""GGUF files of tiny models, written with the format's own library."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from inlay.models.gguf import gguf_directory
from inlay.models.gguf.encode import encode
from tests.support.gguf_blocks import blocks_like
from tests.support.tiny_models import make_tiny_model

ARCHITECTURES = {
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss", "llama": "llama", "mixtral": "llama", "qwen2": "qwen2",
    "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
}  # fmt: skip
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_EXPERTS = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip
# By config.json's names; what only some models have is left out by the others.
_KEYS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
}
_YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}
_SOFTMAX, _SIGMOID = 1, 2

TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<|end|>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 3,
}
"""Metadata of a tokenizer of four tokens, for files whose tokenizer is not looked at."""

Arrays = dict[str, np.ndarray]
Join = Callable[[Arrays], Arrays]


def gguf_and_floats(
    parent: Path,
    kind: Type,
    config: dict[str, Any],
    *,
    metadata: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Path, Path]:
    """The directory of a tiny model's GGUF file, and one with the floats that it stands for.

    Args:
        config, metadata, options: of `make_tiny_model` and `write_gguf`.
    """
    source = make_tiny_model(parent / "source", tokenizer="none", **config)
    file, floats = parent / "model.gguf", parent / "floats"
    meant = write_gguf(source, file, kind, metadata=metadata or TOKENIZER, **options)
    floats.mkdir()
    (floats / "config.json").write_text((source / "config.json").read_text())
    save_file(
        {name: one.contiguous() for name, one in meant.items()},
        floats / "model.safetensors",
        metadata={"format": "pt"},
    )
    return gguf_directory(file, cache_dir=parent / "cache"), floats


def write_gguf(
    source: Path,
    file: Path,
    kind: Type,
    *,
    metadata: dict[str, Any] | None = None,
    experts: Type | None = None,
    others: Mapping[str, Type] | None = None,
    split_latent: bool = True,
    drafting_layers: int = 0,
    parts: int = 1,
    norms: Type = Type.F32,
) -> dict[str, torch.Tensor]:
    """Write the model of a float directory; what its matrices became, by the makers' names.

    Args:
        kind: of matrices; norms, biases and routers are float32.
        metadata: of the tokenizer, or to replace some; None leaves one out.
        experts: of experts, where that is another.
        others: of matrices whose name has such a part.
        split_latent: as files are written from 2025 on.
        drafting_layers: behind the others, which only draft tokens.
        parts: files; above 1 `file` is the first one's name.
        norms: how norms are written.
    """
    config = json.loads((source / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    tensors = {
        name: one.float().numpy() for name, one in load_file(source / "model.safetensors").items()
    }
    stored: list[tuple[str, np.ndarray, Type]] = []
    meant: dict[str, torch.Tensor] = {}
    for pieces, join in _pieces(tensors, config, split_latent):
        floats: Arrays = {}
        for name, values in pieces.items():
            is_matrix = values.ndim > 1 and "ffn_gate_inp" not in name and ".bias" not in name
            held = (experts or kind) if "_exps." in name else kind
            held = next((one for part, one in (others or {}).items() if part in name), held)
            if not is_matrix:
                held = norms if "norm." in name else Type.F32
            data, floats[name] = _stored(values, held)
            stored.append((name, data, held))
        meant |= {name: torch.from_numpy(one.copy()) for name, one in join(floats).items()}
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        stored.append(("rope_freqs.weight", _llama3_table(config, scaling), Type.F32))
    layers = config["num_hidden_layers"]
    for layer in range(layers, layers + drafting_layers):
        stored.append((f"blk.{layer}.nextn.enorm.weight", np.ones(8, np.float32), Type.F32))
    options = {"split_max_tensors": -(-len(stored) // parts)} if parts > 1 else {}
    named = file.with_name(file.name.partition("-00001-of-")[0] + ".gguf") if parts > 1 else file
    writer = gguf.GGUFWriter(named, architecture, **options)
    described = metadata_of(config, architecture, split_latent, drafting_layers)
    for key, value in (described | (metadata or {})).items():
        if value is not None:
            add_metadata(writer, key, value)
    for name, data, held in stored:
        raw = None if held in (Type.F32, Type.F16) else held
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def _pieces(
    tensors: Arrays, config: dict[str, Any], split_latent: bool
) -> Iterator[tuple[Arrays, Join]]:
    """The tensors of the file that stand for one or more of the makers', and the way back."""
    stacks: dict[str, dict[int, str]] = {}
    for name, values in tensors.items():
        if ".experts." in name and config["model_type"] != "gpt_oss":
            layer, expert, part = name.split(".")[2], name.split(".")[-3], name.split(".")[-2]
            stack = stacks.setdefault(f"blk.{layer}.{_EXPERTS[part]}.weight", {})
            stack[int(expert)] = name
        elif ".experts." in name:
            yield _gpt_oss_experts(name, values)
        elif "kv_b_proj" in name and split_latent:
            yield _split(name, values, config)
        else:
            yield _alone(name, values, config)
    for there, names in stacks.items():
        order = [names[expert] for expert in sorted(names)]
        yield (
            {there: np.stack([tensors[name] for name in order])},
            lambda read, there=there, order=order: dict(zip(order, read[there], strict=True)),
        )


def _alone(name: str, values: np.ndarray, config: dict[str, Any]) -> tuple[Arrays, Join]:
    there = _name(name, config)
    is_q, is_k = ".q_proj." in name, ".k_proj." in name
    if ARCHITECTURES[config["model_type"]] != "llama" or not (is_q or is_k):
        return {there: values}, lambda read: {name: read[there]}
    heads = config["num_attention_heads" if is_q else "num_key_value_heads"]
    # llama.cpp's converter puts the two of a rotated pair side by side.
    halves = (heads, 2, -1, *values.shape[1:])
    paired = values.reshape(halves).swapaxes(1, 2)
    return (
        {there: paired.reshape(values.shape)},
        lambda read: {name: read[there].reshape(paired.shape).swapaxes(1, 2).reshape(values.shape)},
    )


def _split(name: str, values: np.ndarray, config: dict[str, Any]) -> tuple[Arrays, Join]:
    layer, nope = name.split(".")[2], config["qk_nope_head_dim"]
    heads = values.reshape(config["num_attention_heads"], -1, values.shape[1])
    k, v = f"blk.{layer}.attn_k_b.weight", f"blk.{layer}.attn_v_b.weight"
    return (
        {k: heads[:, :nope].swapaxes(1, 2), v: heads[:, nope:]},
        lambda read: {
            name: np.concatenate((read[k].swapaxes(1, 2), read[v]), 1).reshape(values.shape)
        },
    )


def _gpt_oss_experts(name: str, values: np.ndarray) -> tuple[Arrays, Join]:
    """Columns first, and those of gate and up in turns; in the file rows first, and apart."""
    layer, part = name.split(".")[2], name.split(".")[-1]
    end = "bias" if part.endswith("_bias") else "weight"
    rows = values if end == "bias" else values.swapaxes(1, 2)
    if part.startswith("down"):
        there = f"blk.{layer}.ffn_down_exps.{end}"
        return (
            {there: rows},
            lambda read: {name: read[there] if end == "bias" else read[there].swapaxes(1, 2)},
        )
    gate, up = f"blk.{layer}.ffn_gate_exps.{end}", f"blk.{layer}.ffn_up_exps.{end}"

    def join(read: Arrays) -> Arrays:
        both = np.empty_like(rows)
        both[:, ::2], both[:, 1::2] = read[gate], read[up]
        return {name: both if end == "bias" else both.swapaxes(1, 2)}

    return {gate: rows[:, ::2], up: rows[:, 1::2]}, join


def metadata_of(
    config: dict[str, Any], name: str, split_latent: bool, drafting_layers: int = 0
) -> dict[str, Any]:
    """What llama.cpp's converter writes of a config.json, for an architecture."""
    given: dict[str, Any] = {
        theirs: config[ours] for ours, theirs in _KEYS.items() if config.get(ours) is not None
    }
    for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base", "expert_weights_scale"):
        if key in given:
            given[key] = float(given[key])
    if drafting_layers:
        given["block_count"] += drafting_layers
        given["nextn_predict_layers"] = drafting_layers
    if "kv_lora_rank" in config:
        given |= _latent_sizes(config, split_latent)
    else:
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        width = config.get("head_dim", head_dim)
        given |= {"attention.key_length": width, "attention.value_length": width}
    if config["model_type"] == "glm4_moe":
        partial = config["partial_rotary_factor"]
        given["rope.dimension_count"] = int(config["head_dim"] * partial)
    if config["model_type"] == "gpt_oss":
        given["expert_feed_forward_length"] = config["intermediate_size"]
    if config["model_type"] in ("deepseek_v3", "glm4_moe"):
        given["expert_gating_func"] = _SIGMOID
        given["expert_weights_norm"] = config.get("norm_topk_prob", True)
    if config["model_type"] == "deepseek_v2":
        given["expert_gating_func"] = _SOFTMAX
    given |= _yarn(config.get("rope_scaling") or {})
    return {f"{name}.{key}": value for key, value in given.items()}


def _latent_sizes(config: dict[str, Any], split_latent: bool) -> dict[str, int]:
    rank, rotated, value = (
        config[key] for key in ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim")
    )
    whole = config["qk_nope_head_dim"] + rotated
    sizes = {"rope.dimension_count": rotated}
    if not split_latent:
        return sizes | {"attention.key_length": whole, "attention.value_length": value}
    return sizes | {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": whole,
        "attention.value_length_mla": value,
    }


def _yarn(scaling: dict[str, Any]) -> dict[str, Any]:
    if "yarn" not in (scaling.get("rope_type"), scaling.get("type")):
        return {}
    given: dict[str, Any] = {"rope.scaling.type": "yarn"}
    for ours, theirs in _YARN.items():
        if ours in scaling:
            is_length = "context" in theirs
            given[f"rope.scaling.{theirs}"] = (int if is_length else float)(scaling[ours])
    if "mscale_all_dim" in scaling:
        given["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling["mscale_all_dim"]
    return given


def _llama3_table(config: dict[str, Any], scaling: dict[str, Any]) -> np.ndarray:
    """What Llama 3.1 divides its frequencies by, one after the other."""
    table = []
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    for index in range(config["head_dim"] // 2):
        turn = 2 * math.pi * config["rope_theta"] ** (2 * index / config["head_dim"])
        turns = scaling["original_max_position_embeddings"] / turn
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        table.append(1 / (share + (1 - share) / scaling["factor"]))
    return np.array(table, np.float32)


def add_metadata(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """In the type that fits the value."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def _stored(values: np.ndarray, kind: Type) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of a tensor, and the floats that they stand for."""
    if kind == Type.F32:
        return values, values
    if kind == Type.F16:
        halves = values.astype(np.float16)
        return halves, halves.astype(np.float32)
    if kind == Type.Q4_K:
        data = _q4_k(values)
    elif kind in (Type.Q5_K, Type.Q6_K):
        data = encode(values, kind)
    elif kind.name.startswith(("IQ", "Q2_K", "Q3_K", "NVFP4")):  # nothing here makes them
        data = blocks_like(np.random.default_rng(values.size), kind.name.lower(), values)
    else:
        data = gguf.quantize(values, kind)
    return data, np.array(gguf.dequantize(data, kind), np.float32)


def _q4_k(values: np.ndarray) -> np.ndarray:
    """Blocks of 256 from each group's least and greatest value; no library makes them here."""
    groups = values.reshape(-1, 8, 32)
    falls = np.maximum(-groups.min(axis=2), 0)
    steps = np.maximum(groups.max(axis=2) + falls, 1e-8) / 15
    factors = [np.maximum(part.max(axis=1), 1e-6) / 63 for part in (steps, falls)]
    halves = [factor.astype(np.float16) for factor in factors]
    scales, minimums = (
        np.clip(np.rint(part / half.astype(np.float32)[:, None]), 0, 63).astype(np.uint8)
        for part, half in zip((steps, falls), halves, strict=True)
    )
    wide = (halves[0][:, None] * scales, halves[1][:, None] * minimums)
    least = np.maximum(wide[0], 1e-8)[..., None]
    codes = np.clip(np.rint((groups + wide[1][..., None]) / least), 0, 15).astype(np.uint8)
    low, high = (slice(0, 4), slice(4, 8))
    packed = [
        *(part[:, low] | part[:, high] >> 4 << 6 for part in (scales, minimums)),
        scales[:, high] & 15 | (minimums[:, high] & 15) << 4,
    ]
    data = np.concatenate(
        [half[:, None].view(np.uint8) for half in halves]
        + packed
        + [(codes[:, 0::2] | codes[:, 1::2] << 4).reshape(len(codes), 128)],
        axis=1,
    )
    return data.reshape(*values.shape[:-1], -1)


def _name(name: str, config: dict[str, Any]) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    if rest == "post_attention_layernorm.weight":
        after = config["model_type"] in ("glm4_moe", "gpt_oss")
        return f"blk.{layer}.{'post_attention_norm' if after else 'ffn_norm'}.weight"
    if rest in _PARTS:
        return f"blk.{layer}.{_PARTS[rest]}"
    part, _, end = rest.rpartition(".")
    return f"blk.{layer}.{_PARTS[part]}.{end}"
