"""The supported architectures, one row of data each, by the `model_type` of config.json.

A row says what config.json leaves to the code of its makers. Adding an architecture whose parts
are known is a row here, one in `inlay.models.weight_names`, and one in `inlay.experts.modules`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class ExpertRow:
    """What a mixture of experts has.

    Attributes:
        score: what makes a token's logits comparable: softmax over all experts, or a sigmoid each;
            or the config key that says which.
        router_bias: the router's matrix has a bias.
        correction: the files hold a bias per expert that is added for the choice alone, always, or
            where this config key is on.
        group_score: what a group of experts counts: its best one, or the sum of its best two.
        normalize: the weights of the chosen ones are scaled to sum 1: always, never, or as this
            config key says.
        exact_router: logits are computed in float32, whatever the weights are.
        width_key: config key of an expert's width.
        shared_key: config key of how many experts all tokens pass.
        shared_width_key: config key of their width, all together; empty: each has `width_key`'s.
        shared_gate: what they give is multiplied by the sigmoid of a score.
        biases: experts have biases.
    """

    score: str = "softmax"
    router_bias: bool = False
    correction: bool | str = False
    group_score: Literal["best", "best_two"] = "best"
    normalize: bool | str = "norm_topk_prob"
    exact_router: bool = False
    width_key: str = "moe_intermediate_size"
    shared_key: str = "n_shared_experts"
    shared_width_key: str = ""
    shared_gate: bool = False
    biases: bool = False


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One supported `model_type`.

    Attributes:
        defaults: values that config.json may leave out.
        attention: grouped-query, or multi-head latent attention.
        spellings: other names of config keys in files of this architecture.
        norms: as in `ModelShape`.
        qk_norm: as in `ModelShape`.
        qk_norm_key: config key that switches `qk_norm` on; empty: it is always on.
        experts: of layers that are mixtures; None: there are none.
        activation: of MLPs and experts.
        norm_offset: files have the weights of norms of the model's width, and of q's and k's, less
            this.
        scaled_embedding: embeddings are multiplied by the square root of the model's width.
        score_width_key: config key of the width whose inverse square root scales scores; empty:
            it is a head's.
        multipliers: embeddings, scores, residual stream and logits have factors in config.json.
        softcaps: scores and logits may be bounded, as config.json says.
        sinks: each head has a learned score that takes its share of the softmax.
        stretched_base: rope type `dynamic` with `alpha` is a larger base for all positions.
        interleaved_rope: a rotated pair are neighbours, not an element and the one half a head on.
        window_key: config key that switches `sliding_window` on; empty: it is always on; None:
            it is ignored.
        window_start_key: config key with the number of leading layers that have no window.
        window_period_key: config key of a number n; where config.json names no kinds of layers,
            each n-th one has no window, all others have one.
        window_rope: layers with a window rotate unstretched, and by `rope_local_base_freq` where
            config.json has it.
        unrotated_period_key: config key of a number n: each n-th layer is not rotated, unless
            `no_rope_layers` says which ones are.
        output_bias: the output projection has a bias: where `attention_bias` is on, never, or as
            this config key says.
        refused: config keys of parts that are not known here; a model that has one is refused.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    attention: Literal["gqa", "mla"] = "gqa"
    norms: Literal["before", "after", "around"] = "before"
    qk_norm: Literal["", "head", "rotated", "whole"] = ""
    qk_norm_key: str = ""
    experts: ExpertRow | None = None
    activation: Literal["silu", "gelu_tanh", "clamped_swiglu"] = "silu"
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    score_width_key: str = ""
    multipliers: bool = False
    softcaps: bool = False
    sinks: bool = False
    stretched_base: bool = False
    interleaved_rope: bool | str = False
    window_key: str | None = None
    window_start_key: str = ""
    window_period_key: str = ""
    window_rope: bool = False
    unrotated_period_key: str = ""
    output_bias: bool | str = True
    refused: tuple[str, ...] = ()


_GEMMA: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
_DEEPSEEK_V3 = Architecture(
    defaults={
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rope_interleave": True,
    },
    attention="mla",
    experts=ExpertRow(score="sigmoid", correction=True, group_score="best_two", exact_router=True),
    interleaved_rope="rope_interleave",
)

_HUNYUAN = Architecture(
    defaults={"use_qk_norm": True, "rms_norm_eps": 1e-5},
    qk_norm="rotated",
    qk_norm_key="use_qk_norm",
    stretched_base=True,
    refused=("use_cla", "use_mla"),
)
_BAILING = Architecture(
    defaults={"use_qk_norm": False},
    spellings={"attention_bias": "use_qkv_bias", "n_shared_experts": "num_shared_experts"},
    qk_norm="head",
    qk_norm_key="use_qk_norm",
    experts=ExpertRow(
        score="score_function",
        correction="moe_router_enable_expert_bias",
        group_score="best_two",
        exact_router=True,
    ),
    output_bias=False,
    refused=("use_bias", "norm_head", "norm_softmax", "multi_gate"),
)

ARCHITECTURES: dict[str, Architecture] = {
    "bailing_moe": _BAILING,
    "bailing_moe_v2": replace(
        _BAILING,
        defaults={
            **_BAILING.defaults,
            "score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
        },
    ),
    "deepseek_v2": Architecture(
        defaults={
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.0,
            "first_k_dense_replace": 0,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        attention="mla",
        experts=ExpertRow(normalize=False, exact_router=True),
        interleaved_rope=True,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "ernie4_5": Architecture(
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True},
        spellings={"attention_bias": "use_bias", "mlp_bias": "use_bias"},
        interleaved_rope=True,
    ),
    "ernie4_5_moe": Architecture(
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "num_experts_per_tok": 6,
            "num_experts": 64,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "decoder_sparse_step": 1,
        },
        spellings={
            "attention_bias": "use_bias",
            "mlp_bias": "use_bias",
            "num_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_k",
            "n_shared_experts": "moe_num_shared_experts",
            "first_k_dense_replace": "moe_layer_start_index",
            "decoder_sparse_step": "moe_layer_interval",
        },
        interleaved_rope=True,
        experts=ExpertRow(correction=True, normalize=True, exact_router=True),
    ),
    "gemma2": Architecture(
        defaults=_GEMMA
        | {
            "sliding_window_pattern": 2,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
        },
        norms="around",
        activation="gelu_tanh",
        norm_offset=1.0,
        scaled_embedding=True,
        score_width_key="query_pre_attn_scalar",
        softcaps=True,
        window_key="",
        window_period_key="sliding_window_pattern",
    ),
    "gemma3_text": Architecture(
        defaults=_GEMMA
        | {
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "sliding_window_pattern": 6,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
        },
        norms="around",
        qk_norm="head",
        activation="gelu_tanh",
        norm_offset=1.0,
        scaled_embedding=True,
        score_width_key="query_pre_attn_scalar",
        softcaps=True,
        window_key="",
        window_period_key="sliding_window_pattern",
        window_rope=True,
    ),
    "glm4_moe": Architecture(
        defaults={
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.5,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "first_k_dense_replace": 1,
            "rms_norm_eps": 1e-5,
            "use_qk_norm": False,
        },
        qk_norm="head",
        qk_norm_key="use_qk_norm",
        experts=ExpertRow(
            score="sigmoid", correction=True, group_score="best_two", exact_router=True
        ),
        output_bias=False,
    ),
    "glm4_moe_lite": Architecture(
        defaults={
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.8,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 512,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "v_head_dim": 256,
            "rms_norm_eps": 1e-5,
            "rope_interleave": True,
        },
        attention="mla",
        experts=ExpertRow(
            score="sigmoid", correction=True, group_score="best_two", exact_router=True
        ),
        interleaved_rope="rope_interleave",
    ),
    "gpt_oss": Architecture(
        defaults={
            "head_dim": 64,
            "num_key_value_heads": 8,
            "attention_bias": True,
            "rope_theta": 150000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "truncate": False,
            },
            "rms_norm_eps": 1e-5,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
        },
        experts=ExpertRow(
            router_bias=True,
            normalize=True,  # softmax over the chosen ones alone is the same
            width_key="intermediate_size",
            biases=True,
        ),
        activation="clamped_swiglu",
        sinks=True,
        window_key="",
        window_period_key="sliding_window_pattern",
    ),
    "granite": Architecture(defaults=_GRANITE, multipliers=True),
    "granitemoe": Architecture(
        defaults=_GRANITE | {"num_experts": 8, "num_experts_per_tok": 2},
        multipliers=True,
        experts=ExpertRow(normalize=True, width_key="intermediate_size"),
    ),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": replace(
        _HUNYUAN,
        defaults={**_HUNYUAN.defaults, "n_shared_experts": 1},
        spellings={
            "num_experts_per_tok": "moe_topk",
            "n_shared_experts": "num_shared_expert",
            "moe_intermediate_size": "intermediate_size",
            "first_k_dense_replace": "moe_layer_num_skipped",
        },
        experts=ExpertRow(normalize=True, exact_router=True),
    ),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": Architecture(),
    "minimax_m2": Architecture(
        defaults={"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5000000.0},
        qk_norm="whole",
        experts=ExpertRow(
            score="sigmoid", correction=True, normalize=True, width_key="intermediate_size"
        ),
    ),
    "ministral3": Architecture(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "rope_scaling": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16384,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale_all_dim": 1.0,
                "mscale": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        window_key="",
    ),
    "mistral": Architecture(defaults={"num_key_value_heads": 8}, window_key=""),
    "mixtral": Architecture(
        defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
        experts=ExpertRow(normalize=True, width_key="intermediate_size"),
        window_key="",
    ),
    "olmo2": Architecture(defaults={"rms_norm_eps": 1e-5}, norms="after", qk_norm="whole"),
    "olmo3": Architecture(
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        norms="after",
        qk_norm="whole",
        window_key="",
        window_period_key="sliding_window_pattern",
        window_rope=True,
    ),
    "olmoe": Architecture(
        defaults={
            "rms_norm_eps": 1e-5,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        qk_norm="whole",
        experts=ExpertRow(width_key="intermediate_size"),
    ),
    "phi3": Architecture(defaults={"rms_norm_eps": 1e-5}, window_key=""),
    "qwen2": Architecture(
        defaults={"attention_bias": True, "max_window_layers": 28},
        window_key="use_sliding_window",
        window_start_key="max_window_layers",
        output_bias=False,
    ),
    "qwen2_moe": Architecture(
        defaults={
            "attention_bias": True,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "norm_topk_prob": False,
            "sliding_window_pattern": 2,
        },
        spellings={"attention_bias": "qkv_bias"},
        experts=ExpertRow(shared_width_key="shared_expert_intermediate_size", shared_gate=True),
        window_key="use_sliding_window",
        window_period_key="sliding_window_pattern",
        output_bias=False,
    ),
    "qwen3": Architecture(
        defaults={"head_dim": 128, "max_window_layers": 28},
        qk_norm="head",
        window_key="use_sliding_window",
        window_start_key="max_window_layers",
    ),
    "qwen3_moe": Architecture(
        defaults={"num_key_value_heads": 4},
        qk_norm="head",
        experts=ExpertRow(),
        window_key="use_sliding_window",
    ),
    "seed_oss": Architecture(
        defaults={"attention_bias": True, "head_dim": 128, "num_key_value_heads": 8},
        output_bias="attention_out_bias",
    ),
    "smollm3": Architecture(
        defaults={
            "rope_theta": 2000000.0,
            "num_key_value_heads": 4,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
        window_key="use_sliding_window",
        unrotated_period_key="no_rope_layer_interval",
    ),
}

TEXT_PARTS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "kimi_k25": "kimi_k2",
    "mistral3": "mistral",
}
"""Architectures of text with something besides, such as images: what their `text_config` is where
it does not say so. Their text part is loaded.
"""
