"""GGUF files of models that `transformers` has written, with the names of the format's own library.

Metadata and the order of rows are those of llama.cpp's converter, whose files of the same models
were read once, too.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

from tests.support.gguf_files import TOKENIZER, add_metadata

NAMES = {
    "ernie4_5": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "granite": "granite",
    "granitemoe": "granitemoe", "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe", "minimax_m2": "minimax-m2", "ministral3": "mistral3",
    "olmo2": "olmo2", "olmo3": "olmo2", "olmoe": "olmoe", "phi3": "phi3", "qwen2_moe": "qwen2moe",
    "seed_oss": "seed_oss", "smollm3": "smollm3",
}  # fmt: skip
# The two of a rotated pair lie side by side, unlike in their makers' files.
_PAIRED = ("granite", "granitemoe", "ministral3", "smollm3")
_LESS_ONE = ("gemma2", "gemma3_text")
_KEYS = {
    "num_hidden_layers": "block_count", "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count", "moe_num_experts": "expert_count",
    "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
    "moe_k": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
    "moe_num_shared_experts": "expert_shared_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
    "rotary_dim": "rope.dimension_count",
}  # fmt: skip
_ROPE_KEYS = {
    "factor": "factor", "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow",
    "mscale_all_dim": "yarn_log_multiplier",
}  # fmt: skip
_EXPERTS = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip


def write_published_gguf(source: Path, file: Path) -> None:
    """Write the model of a directory in float32, with a tokenizer that nobody looks at."""
    config = json.loads((source / "config.json").read_text())
    kind = config["model_type"]
    name = NAMES[kind]
    writer = gguf.GGUFWriter(file, name)
    for key, value in (_metadata(config, name) | TOKENIZER).items():
        add_metadata(writer, key, value)
    for key, values in _tensors(source, config, name).items():
        writer.add_tensor(key, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(config: dict[str, Any], name: str) -> dict[str, Any]:
    given: dict[str, Any] = {
        theirs: config[ours]
        for ours, theirs in _KEYS.items()
        if isinstance(config.get(ours), int | float)
    }
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    given["rope.freq_base"] = float(rope["rope_theta"])
    if "alpha" in rope:
        given["rope.freq_base"] *= rope["alpha"] ** (width / (width - 2))
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        given["rope.dimension_count"] = int(width * rope["partial_rotary_factor"])
    if rope["rope_type"] in ("yarn", "linear"):
        given["rope.scaling.type"] = rope["rope_type"]
        given |= {
            f"rope.scaling.{theirs}": rope[ours]
            for ours, theirs in _ROPE_KEYS.items()
            if ours in rope
        }
    if "llama_4_scaling_beta" in rope:
        given["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    if rope["rope_type"] == "longrope":
        given["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if config["model_type"] == "olmo3":
        windows = [kind == "sliding_attention" for kind in config["layer_types"]]
        given["attention.sliding_window_pattern"] = windows
    if config["model_type"] == "hunyuan_v1_moe":
        given["expert_used_count"] = config["moe_topk"][0]
        given["expert_shared_count"] = 1
        given["expert_feed_forward_length"] = config["intermediate_size"]
        given["expert_shared_feed_forward_length"] = config["intermediate_size"]
    if config["model_type"] == "minimax_m2":
        given["expert_gating_func"] = 2
        given["expert_feed_forward_length"] = config["intermediate_size"]
    return {f"{name}.{key}": value for key, value in given.items()}


def _tensors(source: Path, config: dict[str, Any], name: str) -> dict[str, np.ndarray]:
    architecture = next(key for key, one in gguf.MODEL_ARCH_NAMES.items() if one == name)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    written: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for key, tensor in load_file(source / "model.safetensors").items():
        values = tensor.float().numpy()
        parts = key.split(".")
        if ".experts." in key:
            there = f"blk.{parts[2]}.{_EXPERTS[parts[-2]]}.weight"
            stacks[there][int(parts[-3])] = values
            continue
        if key.endswith("input_linear.weight"):  # gate and up of all experts
            half = values.shape[1] // 2
            written[f"blk.{parts[2]}.ffn_gate_exps.weight"] = values[:, :half]
            written[f"blk.{parts[2]}.ffn_up_exps.weight"] = values[:, half:]
            continue
        if key.endswith("e_score_correction_bias"):
            written[f"blk.{parts[2]}.exp_probs_b.bias"] = values
            continue
        there = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert there is not None, key
        if config["model_type"] in _PAIRED and (".q_proj." in key or ".k_proj." in key):
            heads = config["num_attention_heads" if ".q_proj." in key else "num_key_value_heads"]
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if config["model_type"] in _LESS_ONE and key.endswith("norm.weight"):
            values = values + 1
        written[there] = values
    rope = config["rope_parameters"]
    for length in ("long", "short"):
        if f"{length}_factor" in rope:
            written[f"rope_factors_{length}.weight"] = np.array(rope[f"{length}_factor"])
    return written | {
        there: np.stack([stack[expert] for expert in sorted(stack)])
        for there, stack in stacks.items()
    }
