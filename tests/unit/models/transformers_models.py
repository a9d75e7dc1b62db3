"""Tiny random models as `transformers` itself makes and writes them, in their makers' names."""

from pathlib import Path
from typing import Any

import torch

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_WIDE = 0.2  # of random weights, so that greedy text does not fall into a loop of one token
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 6.0, 8.0],
    "original_max_position_embeddings": 3,
}

CASES: dict[str, dict[str, Any]] = {
    "ernie4_5": {"head_dim": 24, "num_attention_heads": 3, "num_key_value_heads": 1},
    "ernie4_5_moe": {
        "num_hidden_layers": 3,
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
        "moe_intermediate_size": 32,
    },
    "gemma2": {
        "tie_word_embeddings": False,
        "num_hidden_layers": 3,
        "head_dim": 24,
        "query_pre_attn_scalar": 20,
        "sliding_window": 13,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 6.0,
    },
    "gemma3_text": {
        "tie_word_embeddings": False,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "head_dim": 24,
        "query_pre_attn_scalar": 20,
        "sliding_window": 13,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "glm4_moe_lite": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
    },
    "granite": {
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 8.0,
        "tie_word_embeddings": False,
    },
    "granitemoe": {
        "tie_word_embeddings": False,
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 8.0,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "intermediate_size": 48,
    },
    "hunyuan_v1_dense": {
        "head_dim": 24,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 10000.0,
            "factor": 1.0,
            "alpha": 50.0,
        },
    },
    "hunyuan_v1_moe": {
        "head_dim": 24,
        "num_experts": 6,
        "moe_topk": [2, 2],
        "intermediate_size": 40,
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 10000.0,
            "factor": 1.0,
            "alpha": 1000.0,
        },
    },
    "minimax_m2": {
        "head_dim": 24,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "intermediate_size": 40,
        "rotary_dim": 12,
    },
    "ministral3": {
        "head_dim": 24,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "olmo2": {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "olmo3": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 5,
        "tie_word_embeddings": False,
        "sliding_window": 13,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "rope_theta": 500000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
        },
    },
    "olmoe": {
        "tie_word_embeddings": False,
        "num_key_value_heads": 4,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "intermediate_size": 40,
    },
    "phi3": {"tie_word_embeddings": False, "sliding_window": 21},
    "phi3_long": {
        "model_type": "phi3",
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONG_ROPE,
        "original_max_position_embeddings": 3,
        "sliding_window": None,
    },
    "qwen2_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
        "tie_word_embeddings": False,
    },
    "seed_oss": {"head_dim": 24, "attention_out_bias": True, "tie_word_embeddings": False},
    "smollm3": {"num_hidden_layers": 5, "no_rope_layer_interval": 2},
}
"""Settings by case; it is the `model_type` where they name none."""


def make_transformers_model(directory: Path, case: str, *, seed: int = 0, **changed: Any) -> Path:
    """Write the random model of a case, with some settings changed, and return its directory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = _SIZES | CASES[case] | changed
    config = AutoConfig.for_model(settings.pop("model_type", case), **settings)
    model = AutoModelForCausalLM.from_config(config).float()
    randomise(model, seed)
    model.save_pretrained(directory)
    return directory


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Give a model wide random weights."""
    torch.manual_seed(seed)
    for name, values in [*model.named_parameters(), *model.named_buffers()]:
        if not values.is_floating_point() or "inv_freq" in name or "embed_scale" in name:
            continue
        random = torch.randn(values.shape) * _WIDE
        if "norm" in name:
            # Where files have what is added to one, that is all of it.
            random += values.detach().mean()
        values.data.copy_(random)
