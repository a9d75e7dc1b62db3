"""GGUF files of tiny models, written with the format's own library."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

_ARCHITECTURES = {
    "llama": "llama", "mixtral": "llama", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
}  # fmt: skip
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_EXPERTS = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip


def write_gguf(
    source: Path, file: Path, kind: Type, *, metadata: dict[str, Any] | None = None
) -> dict[str, torch.Tensor]:
    """Write the model of a float directory; what its matrices became, by the makers' names.

    Args:
        kind: of matrices; norms, biases and routers are float32.
        metadata: of the tokenizer, or to replace some.
    """
    config = json.loads((source / "config.json").read_text())
    architecture = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in (_metadata(config, architecture) | (metadata or {})).items():
        _add(writer, key, value)
    tensors = {
        name: one.float().numpy() for name, one in load_file(source / "model.safetensors").items()
    }
    meant: dict[str, torch.Tensor] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, values in tensors.items():
        is_matrix = values.ndim > 1 and "mlp.gate.weight" not in name and "moe.gate." not in name
        data, floats = _stored(values, kind if is_matrix else Type.F32)
        meant[name] = torch.from_numpy(floats)
        if ".experts." in name:
            layer, expert, part = name.split(".")[2], name.split(".")[-3], name.split(".")[-2]
            stack = stacks.setdefault(f"blk.{layer}.{_EXPERTS[part]}.weight", {})
            stack[int(expert)] = data
            continue
        if architecture == "llama" and ("q_proj.weight" in name or "k_proj.weight" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            data = _paired(data, heads)
        _add_tensor(writer, _name(name), data, kind if is_matrix else Type.F32)
    for name, parts in stacks.items():
        _add_tensor(writer, name, np.stack([parts[expert] for expert in sorted(parts)]), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def _metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    given = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
    }
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts:
        given |= {"expert_count": experts, "expert_used_count": config["num_experts_per_tok"]}
    if "moe_intermediate_size" in config:
        given["expert_feed_forward_length"] = config["moe_intermediate_size"]
    return {f"{name}.{key}": value for key, value in given.items()}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
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
    data = _q4_k(values) if kind == Type.Q4_K else gguf.quantize(values, kind)
    return data, np.array(gguf.dequantize(data, kind), np.float32)


def _q4_k(values: np.ndarray) -> np.ndarray:
    """Blocks of 256 at random, about as large as the values: no library makes them here."""
    blocks = values.size // 256
    draw = np.random.default_rng(blocks)
    data = draw.integers(0, 256, (blocks, 144), np.uint8)
    scale = np.full((blocks, 1), float(np.abs(values).mean()) / 200, np.float16)
    data[:, :2] = scale.view(np.uint8)
    data[:, 2:4] = (8 * scale).astype(np.float16).view(np.uint8)
    return data.reshape(*values.shape[:-1], -1)


def _paired(data: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter orders them: the two of a rotated pair side by side."""
    halves = data.reshape(heads, 2, -1, data.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(data.shape)


def _name(name: str) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, end = rest.rpartition(".")
    return f"blk.{layer}.{_PARTS[part]}.{end}"


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: np.ndarray, kind: Type) -> None:
    raw = None if kind in (Type.F32, Type.F16) else kind
    writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=raw)
