"""The supported architectures, one row of data each, by the `model_type` of config.json.

A row says what config.json leaves to the code of its makers. Adding an architecture whose parts
are known is a row here, one in `inlay.models.weight_names`, and one in `inlay.experts.modules`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class ExpertRow:
    """What a mixture of experts has.

    Attributes:
        score: what makes a token's logits comparable: softmax over all experts, or a sigmoid each.
        router_bias: the router's matrix has a bias.
        correction: the files hold a bias per expert that is added for the choice alone.
        group_score: what a group of experts counts: its best one, or the sum of its best two.
        normalize: the weights of the chosen ones are scaled to sum 1: always, never, or as this
            config key says.
        exact_router: logits are computed in float32, whatever the weights are.
        width_key: config key of an expert's width.
        biases: experts have biases.
    """

    score: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False
    correction: bool = False
    group_score: Literal["best", "best_two"] = "best"
    normalize: bool | str = "norm_topk_prob"
    exact_router: bool = False
    width_key: str = "moe_intermediate_size"
    biases: bool = False


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One supported `model_type`.

    Attributes:
        defaults: values that config.json may leave out.
        attention: grouped-query, or multi-head latent attention.
        qk_norm: q and k of each head are RMS-normalised before the rotation: always, never, or as
            this config key says.
        experts: of layers that are mixtures; None: there are none.
        activation: of MLPs and experts.
        sinks: each head has a learned score that takes its share of the softmax.
        interleaved_rope: a rotated pair are neighbours, not an element and the one half a head on.
        window_key: config key that switches `sliding_window` on; empty: it is always on; None:
            it is ignored.
        window_start_key: config key with the number of leading layers that have no window.
        alternating_windows: where config.json names no kinds of layers, each second one has a
            window, the first among them.
        output_bias: `attention_bias` covers the output projection too.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    attention: Literal["gqa", "mla"] = "gqa"
    qk_norm: bool | str = False
    experts: ExpertRow | None = None
    activation: Literal["silu", "clamped_swiglu"] = "silu"
    sinks: bool = False
    interleaved_rope: bool | str = False
    window_key: str | None = None
    window_start_key: str = ""
    alternating_windows: bool = False
    output_bias: bool = True


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

ARCHITECTURES: dict[str, Architecture] = {
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
        qk_norm="use_qk_norm",
        experts=ExpertRow(
            score="sigmoid", correction=True, group_score="best_two", exact_router=True
        ),
        output_bias=False,
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
        alternating_windows=True,
    ),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": Architecture(),
    "mistral": Architecture(defaults={"num_key_value_heads": 8}, window_key=""),
    "mixtral": Architecture(
        defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
        experts=ExpertRow(normalize=True, width_key="intermediate_size"),
        window_key="",
    ),
    "qwen2": Architecture(
        defaults={"attention_bias": True, "max_window_layers": 28},
        window_key="use_sliding_window",
        window_start_key="max_window_layers",
        output_bias=False,
    ),
    "qwen3": Architecture(
        defaults={"head_dim": 128, "max_window_layers": 28},
        qk_norm=True,
        window_key="use_sliding_window",
        window_start_key="max_window_layers",
    ),
    "qwen3_moe": Architecture(
        defaults={"num_key_value_heads": 4},
        qk_norm=True,
        experts=ExpertRow(),
        window_key="use_sliding_window",
    ),
}
