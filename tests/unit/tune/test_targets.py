"""Which matrices `lora_target` means."""

from pathlib import Path

import pytest

from inlay.core.errors import ConfigError
from inlay.core.model_config import read_shape
from inlay.core.model_shape import ModelShape
from inlay.tune.targets import chosen_targets
from tests.support.tiny_models import make_tiny_model


def shape_of(tmp_path: Path, architecture: str) -> ModelShape:
    return read_shape(make_tiny_model(tmp_path / architecture, architecture, tokenizer="none"))


def test_all_are_attention_mlps_and_experts(tmp_path: Path) -> None:
    every = chosen_targets(shape_of(tmp_path, "deepseek_v2"), ["all"])
    names = {target.name for target in every}
    assert "model.layers.0.mlp.up_proj" in names
    assert "model.layers.1.mlp.shared_experts.up_proj" in names
    assert "model.layers.1.mlp.experts.{expert}.up_proj" in names
    assert "model.layers.1.self_attn.kv_b_proj" in names
    assert not any(word in name for name in names for word in ("mlp.gate.", "lm_head", "embed"))


def test_a_last_word_means_all_that_end_with_it(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, "deepseek_v2")
    up = chosen_targets(shape, ["up_proj"])
    assert [target.part for target in up] == ["up", "shared_up", "expert_up"]
    assert [t.part for t in chosen_targets(shape, ["experts.up_proj"])] == ["expert_up"]
    assert [t.part for t in chosen_targets(shape, ["shared_experts.up_proj"])] == ["shared_up"]


def test_experts_have_the_names_of_their_files(tmp_path: Path) -> None:
    target = chosen_targets(shape_of(tmp_path, "mixtral"), ["w3"])[0]
    assert target.name_of(4) == "model.layers.0.block_sparse_moe.experts.4.w3"
    assert (target.rows, target.columns, target.experts) == (96, 64, 6)


def test_what_matches_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'query' matches nothing.*q_proj, k_proj"):
        chosen_targets(shape_of(tmp_path, "qwen3"), ["q_proj", "query"])
