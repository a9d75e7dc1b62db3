"""The architectures that are read from GGUF files, one row of data each. Loads no torch.

A row says what differs from the names and keys that all share. Source: the metadata and the tensor
names that llama.cpp's converter writes, as of 2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inlay.core.errors import UnsupportedModelError

KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "context_length": "max_position_embeddings",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "interleave_moe_layer_step": "decoder_sparse_step",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "rope.freq_base_swa": "rope_local_base_freq",
}
"""By key, without the architecture's name before it, what config.json calls it."""

NAMES = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "attention_norm": "blk.{layer}.attn_norm.weight",
    "q": "blk.{layer}.attn_q.weight",
    "k": "blk.{layer}.attn_k.weight",
    "v": "blk.{layer}.attn_v.weight",
    "output": "blk.{layer}.attn_output.weight",
    "q_bias": "blk.{layer}.attn_q.bias",
    "k_bias": "blk.{layer}.attn_k.bias",
    "v_bias": "blk.{layer}.attn_v.bias",
    "output_bias": "blk.{layer}.attn_output.bias",
    "q_norm": "blk.{layer}.attn_q_norm.weight",
    "k_norm": "blk.{layer}.attn_k_norm.weight",
    "sinks": "blk.{layer}.attn_sinks.weight",
    "q_down": "blk.{layer}.attn_q_a.weight",
    "q_latent_norm": "blk.{layer}.attn_q_a_norm.weight",
    "q_up": "blk.{layer}.attn_q_b.weight",
    "kv_down": "blk.{layer}.attn_kv_a_mqa.weight",
    "kv_latent_norm": "blk.{layer}.attn_kv_a_norm.weight",
    "kv_up": "blk.{layer}.attn_kv_b.weight",
    "attention_post_norm": "blk.{layer}.post_attention_norm.weight",
    "mlp_norm": "blk.{layer}.ffn_norm.weight",
    "mlp_post_norm": "blk.{layer}.post_ffw_norm.weight",
    "gate": "blk.{layer}.ffn_gate.weight",
    "up": "blk.{layer}.ffn_up.weight",
    "down": "blk.{layer}.ffn_down.weight",
    "router": "blk.{layer}.ffn_gate_inp.weight",
    "router_bias": "blk.{layer}.ffn_gate_inp.bias",
    "correction": "blk.{layer}.exp_probs_b.bias",
    "shared_gate": "blk.{layer}.ffn_gate_shexp.weight",
    "shared_up": "blk.{layer}.ffn_up_shexp.weight",
    "shared_down": "blk.{layer}.ffn_down_shexp.weight",
    "shared_score": "blk.{layer}.ffn_gate_inp_shexp.weight",
    # Experts lie in one tensor for each matrix.
    "expert_gate": "blk.{layer}.ffn_gate_exps.weight",
    "expert_up": "blk.{layer}.ffn_up_exps.weight",
    "expert_down": "blk.{layer}.ffn_down_exps.weight",
    "expert_gate_bias": "blk.{layer}.ffn_gate_exps.bias",
    "expert_up_bias": "blk.{layer}.ffn_up_exps.bias",
    "expert_down_bias": "blk.{layer}.ffn_down_exps.bias",
}
"""By part of the decoder; `{layer}` is a number."""

# Files from 2025 on have the matrix of latent attention's heads apart: for keys, turned over
# (`[heads, latent, elements]`), and for values (`[heads, elements, latent]`).
KEYS_UP = "blk.{layer}.attn_k_b.weight"
VALUES_UP = "blk.{layer}.attn_v_b.weight"

SOFTMAX, SIGMOID = 1, 2
"""Values of `expert_gating_func`."""


@dataclass(frozen=True, kw_only=True)
class GgufRow:
    """One `general.architecture`.

    Attributes:
        model_type: of config.json, that has its layers.
        mixture_type: the same for files with experts, where that is another.
        sigmoid_type: the same for files whose router has a sigmoid for each expert.
        growing_type: the same for files whose queries grow with their position.
        windowed_type: the same for files some of whose layers have a window.
        experts_key: what config.json calls `expert_count`.
        gating: `expert_gating_func` of files that leave it out.
        names: of tensors that are called otherwise than `NAMES` says.
        paired: the two rows of a rotated pair of q and k lie side by side, and the makers' files
            have them half a head apart. The converter leaves those of all others as they are.
        config: what files leave out, as llama.cpp takes it then.
        rope: what metadata do not say of stretched positions.
        score_widths: whose inverse square root scales scores, by the number of layers, where it is
            not a head's; None: config.json has no such key.
        unread: keys of models that share the architecture's name, and are others.
        makers: what older files leave out although their makers' config.json has it, by the
            numbers of layers and experts.
    """

    model_type: str
    mixture_type: str = ""
    sigmoid_type: str = ""
    growing_type: str = ""
    windowed_type: str = ""
    experts_key: str = "n_routed_experts"
    gating: int = SOFTMAX
    names: Mapping[str, str] = field(default_factory=dict)
    paired: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    rope: Mapping[str, Any] = field(default_factory=dict)
    score_widths: Mapping[int, int] | None = None
    unread: tuple[str, ...] = ("attention.temperature_scale",)
    makers: Mapping[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)


_AFTER_ATTENTION = {"mlp_norm": "blk.{layer}.post_attention_norm.weight"}
_ROUTED = {
    "first_k_dense_replace": 0,
    "n_shared_experts": 0,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}

ROWS: dict[str, GgufRow] = {
    "bailingmoe": GgufRow(model_type="bailing_moe", experts_key="num_experts", paired=True),
    "bailingmoe2": GgufRow(
        model_type="bailing_moe_v2",
        experts_key="num_experts",
        gating=SIGMOID,
        names={"qkv": "blk.{layer}.attn_qkv.weight"},
        config={"score_function": "sigmoid", "moe_router_enable_expert_bias": True},
    ),
    "deepseek2": GgufRow(
        model_type="deepseek_v2",
        sigmoid_type="deepseek_v3",
        config=_ROUTED,
        makers={
            (60, 160): {"n_group": 8, "topk_group": 3},  # DeepSeek-V2, V2.5
            (61, 256): {"n_group": 8, "topk_group": 4},  # DeepSeek-V3, R1
            (61, 384): {"beta_fast": 1.0},  # Kimi-K2
            (47, 64): {"expert_gating_func": SIGMOID},  # GLM-4.7-Flash
        },
    ),
    "ernie4_5": GgufRow(model_type="ernie4_5"),
    "ernie4_5-moe": GgufRow(model_type="ernie4_5_moe", experts_key="num_experts"),
    "gemma2": GgufRow(model_type="gemma2", score_widths={46: 144}),  # the one of 27B
    "gemma3": GgufRow(model_type="gemma3_text", score_widths={62: 168}),  # the one of 27B
    "glm4moe": GgufRow(
        model_type="glm4_moe", gating=SIGMOID, names=_AFTER_ATTENTION, config=_ROUTED
    ),
    "gpt-oss": GgufRow(
        model_type="gpt_oss",
        experts_key="num_local_experts",
        names=_AFTER_ATTENTION,
        rope={"truncate": False},
    ),
    "granite": GgufRow(model_type="granite", paired=True),
    "granitemoe": GgufRow(model_type="granitemoe", experts_key="num_local_experts", paired=True),
    "hunyuan-dense": GgufRow(model_type="hunyuan_v1_dense"),
    "hunyuan-moe": GgufRow(model_type="hunyuan_v1_moe", experts_key="num_experts"),
    "llama": GgufRow(
        model_type="llama",
        mixture_type="mixtral",
        experts_key="num_local_experts",
        paired=True,
    ),
    "minimax-m2": GgufRow(model_type="minimax_m2", experts_key="num_local_experts", gating=SIGMOID),
    "mistral3": GgufRow(model_type="mistral", growing_type="ministral3", paired=True, unread=()),
    "olmo2": GgufRow(
        model_type="olmo2", windowed_type="olmo3", unread=("attention.temperature_scale",)
    ),
    "olmoe": GgufRow(model_type="olmoe", experts_key="num_experts"),
    "phi3": GgufRow(
        model_type="phi3",
        names={"qkv": "blk.{layer}.attn_qkv.weight", "gate_up": "blk.{layer}.ffn_up.weight"},
    ),
    "qwen2": GgufRow(model_type="qwen2"),
    "qwen2moe": GgufRow(model_type="qwen2_moe", experts_key="num_experts"),
    "qwen3": GgufRow(model_type="qwen3"),
    "qwen3moe": GgufRow(
        model_type="qwen3_moe", experts_key="num_experts", config={"norm_topk_prob": True}
    ),
    "seed_oss": GgufRow(model_type="seed_oss", names=_AFTER_ATTENTION),
    "smollm3": GgufRow(model_type="smollm3", paired=True),
}


def row_of(name: Any, where: str) -> GgufRow:
    """The row of an architecture.

    Args:
        where: what says so, for messages.

    Raises:
        UnsupportedModelError: it is not read from GGUF; the message lists those that are.
    """
    row = ROWS.get(name) if isinstance(name, str) else None
    if name == "clip":
        raise UnsupportedModelError(
            f"{where} is the image part that goes with a model: name the GGUF file of the model"
        )
    if row is None:
        raise UnsupportedModelError(
            f"{where}: architecture {name!r} is not served, from GGUF or other files; served from "
            f"GGUF are {', '.join(ROWS)}"
        )
    return row
