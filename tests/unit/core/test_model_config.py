"""What config.json says, beside what `transformers` makes of it, in sizes of published models."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.core.model_config import read_config, shape_of

DEEPSEEK_V2_LITE = {
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
}
QWEN3_30B = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "norm_topk_prob": True,
}


def config_of(architecture: str, **changes: Any) -> dict[str, Any]:
    """As transformers writes it."""
    config: dict[str, Any] = transformers.AutoConfig.for_model(architecture, **changes).to_dict()
    return config


@pytest.mark.parametrize(
    ("architecture", "changes", "published"),
    [
        ("deepseek_v2", DEEPSEEK_V2_LITE, 15.7e9),
        ("deepseek_v2", {"attention_bias": True, "num_experts_per_tok": 6}, None),
        ("deepseek_v3", {}, 671e9),
        ("deepseek_v3", {"q_lora_rank": None, "attention_bias": True}, None),
        ("glm4_moe", {"use_qk_norm": True, "attention_bias": True, "head_dim": 128}, 106e9),
        ("gpt_oss", {}, 116.8e9),
        ("mixtral", {}, 46.7e9),
        ("qwen3_moe", QWEN3_30B, 30.5e9),
    ],
)
def test_weights_are_counted_as_transformers_has_them(
    architecture: str, changes: dict[str, Any], published: float | None
) -> None:
    config = transformers.AutoConfig.for_model(architecture, **changes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    count = sum(weight.numel() for weight in model.parameters())
    count += sum(one.numel() for name, one in model.named_buffers() if "correction" in name)
    shape = shape_of(config.to_dict())
    assert shape.parameters == count
    assert published is None or shape.parameters == pytest.approx(published, rel=0.01)


def test_what_a_token_leaves_in_the_cache() -> None:
    """A latent and one rotated key, or keys and values of all heads."""
    assert shape_of(config_of("deepseek_v3")).kv_token_bytes() == 61 * (512 + 64) * 2
    assert shape_of(config_of("gpt_oss")).kv_token_bytes() == 36 * 2 * 8 * 64 * 2


def test_which_layers_are_mixtures() -> None:
    first_dense = shape_of(config_of("deepseek_v3", num_hidden_layers=5))
    assert first_dense.sparse_layers == (3, 4)
    all_sparse = shape_of(config_of("gpt_oss", num_hidden_layers=3))
    assert all_sparse.sparse_layers == (0, 1, 2)
    assert all_sparse.sliding_windows == (128, 0, 128)


def test_routers() -> None:
    v3 = shape_of(config_of("deepseek_v3")).router
    assert (v3.score, v3.groups, v3.groups_per_token, v3.scale) == ("sigmoid", 8, 4, 2.5)
    assert v3.correction and v3.normalize and v3.exact and v3.group_score == "best_two"
    grouped = {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}
    v2 = shape_of(config_of("deepseek_v2", num_experts_per_tok=6, **grouped)).router
    assert (v2.score, v2.groups, v2.groups_per_token) == ("softmax", 8, 3)
    assert not v2.normalize  # whatever norm_topk_prob says: the makers' code does not
    greedy = grouped | {"topk_method": "greedy"}
    lite = shape_of(config_of("deepseek_v2", num_experts_per_tok=6, **greedy)).router
    assert lite.groups == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_group": 7}, "from topk_group 4 of n_group 7"),
        ({"topk_group": 9}, "from topk_group 9 of n_group 8"),
        ({"n_group": 256, "topk_group": 8}, "fewer than two of 256"),
        ({"kv_lora_rank": 0}, "kv_lora_rank is 0"),
    ],
)
def test_routers_and_latents_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    config = config_of("deepseek_v3") | changes
    with pytest.raises(ModelFileError, match=message):
        shape_of(config)


def test_the_scores_of_a_stretched_context() -> None:
    """Query and key are scaled, so scores twice. Source: DeepSeek's own code."""
    yarn = {
        "type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
    }  # fmt: skip
    config = config_of("deepseek_v3") | {"rope_parameters": None, "rope_scaling": yarn}
    rope = shape_of(config).rope
    assert rope.attention_factor == 1.0
    assert rope.score_factor == pytest.approx(1.8739, rel=1e-4)
    assert rope.interleaved and rope.rotary_dim == 64


def test_a_directory_that_cannot_be_looked_into() -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"config.json cannot be read \(File name too long"
    ):
        read_config(Path("/tmp") / ("x" * 300))


HUNYUAN_A13B = {
    "model_type": "hunyuan_v1_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_experts": 64,
    "intermediate_size": 3072,
    "moe_intermediate_size": [3072] * 32,
    "moe_topk": [8] * 32,
    "num_shared_expert": [1] * 32,
    "vocab_size": 128167,
    "max_position_embeddings": 32768,
    "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    "tie_word_embeddings": True,
}
LING_MINI_2 = {
    "model_type": "bailing_moe_v2",
    "hidden_size": 2048,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "vocab_size": 157184,
    "max_position_embeddings": 32768,
    "norm_topk_prob": True,
    "use_qk_norm": True,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "n_group": 8,
    "topk_group": 4,
}


@pytest.mark.parametrize(("config", "size"), [(HUNYUAN_A13B, 80.4e9), (LING_MINI_2, 16.26e9)])
def test_sizes_that_makers_name(config: dict[str, Any], size: float) -> None:
    assert shape_of(config).parameters == pytest.approx(size, rel=1e-3)


def test_frequencies_stretched_by_alpha() -> None:
    """llama.cpp's converter names the base that Hunyuan-A13B has."""
    assert shape_of(HUNYUAN_A13B).rope.theta == pytest.approx(11158839.9251)
    with pytest.raises(UnsupportedModelError, match="rope type 'dynamic' is not supported"):
        shape_of(HUNYUAN_A13B | {"rope_scaling": {"type": "dynamic", "factor": 2.0}})


def test_a_base_is_stretched_where_the_makers_do_so() -> None:
    alpha = {"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 2.0}}
    with pytest.raises(UnsupportedModelError, match="rope type 'dynamic' is not supported"):
        shape_of(config_of("llama") | {"rope_parameters": None, **alpha})


def test_the_second_version_of_ling_has_sigmoids() -> None:
    kept = {
        key: LING_MINI_2[key] for key in LING_MINI_2 if "score" not in key and "bias" not in key
    }
    router = shape_of(kept).router
    assert (router.score, router.correction) == ("sigmoid", True)


def test_layers_that_differ_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="moe_topk is 8 in some layers and not"):
        shape_of(HUNYUAN_A13B | {"moe_topk": [8] * 31 + [4]})
    with pytest.raises(UnsupportedModelError, match="score_function 'tanh' is not supported"):
        shape_of(LING_MINI_2 | {"score_function": "tanh"})
