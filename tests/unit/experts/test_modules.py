"""Names and classes of modules, beside those of transformers."""

import re
from dataclasses import replace

import pytest

from inlay.core.architectures import ARCHITECTURES
from inlay.core.errors import UnsupportedModelError
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.experts import modules_of
from inlay.experts.modules import absent_classes

MODELS = (
    "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "glm-4.5", "gpt-oss-20b", "llama-3.1-8b",
    "mixtral-8x7b", "qwen3-8b", "qwen3-30b-a3b",
)  # fmt: skip
# What Inlay has in the place that KTransformers' code has it in, and transformers does not.
DEFAULTS = (
    "ernie4_5", "ernie4_5_moe", "gemma2", "gemma3_text", "glm4_moe_lite", "granite", "granitemoe",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "minimax_m2", "ministral3", "olmo2", "olmo3", "olmoe",
    "phi3", "qwen2", "qwen2_moe", "seed_oss", "smollm3",
)  # fmt: skip
OURS = re.compile(r"self_attn\.rotary_emb$")
# What computes no part of its own: each activation is in its MLP.
THEIRS = re.compile(r"(act_fn|activation_fn|dropout|moe_statics|gate\.wg)$")


@pytest.mark.parametrize("name", MODELS)
def test_names_and_classes_are_those_of_transformers(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = dict(known_config(name) or {})
    config["num_hidden_layers"] = 4  # dense ones and mixtures
    for key in ("quantization_config", "layer_types"):
        config.pop(key, None)
    shape = shape_of(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config.pop("model_type"), **config)
        )
    theirs = {
        path: type(module).__name__
        for path, module in model.named_modules()
        if path and not THEIRS.search(path)
    }
    ours = {one.name: one.classes[0] for one in modules_of(shape) if not OURS.search(one.name)}
    assert ours == theirs


@pytest.mark.parametrize("name", DEFAULTS)
def test_names_and_sizes_of_an_architecture(name: str) -> None:
    """As `transformers` takes it where config.json says nothing, which is a published model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, num_hidden_layers=4)
    if name == "phi3":
        config.pad_token_id = 0  # beyond the default vocabulary otherwise
    if name.startswith("hunyuan"):
        config.head_dim = 128  # cannot be left out, whatever its default says
        config.num_experts = 8  # one, by default
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = shape_of(config.to_dict())
    corrections = (one for key, one in model.named_buffers() if "correction_bias" in key)
    assert shape.parameters == sum(one.numel() for one in (*model.parameters(), *corrections))
    theirs = {
        path: type(module).__name__
        for path, module in model.named_modules()
        if path and not THEIRS.search(path)
    }
    ours = {one.name: one.classes[0] for one in modules_of(shape) if not OURS.search(one.name)}
    assert ours == theirs


def test_every_architecture_has_names() -> None:
    shape = shape_of(known_config("llama-3.1-8b") or {})
    for architecture in ARCHITECTURES:
        assert modules_of(replace(shape, architecture=architecture))[0].name == "model"
    with pytest.raises(UnsupportedModelError, match="'other' have no names: add its row"):
        modules_of(replace(shape, architecture="other"))


def test_each_module_comes_before_those_below_it() -> None:
    """The walk of rules, which may end at a module, counts on it."""
    seen: set[str] = set()
    for module in modules_of(shape_of(known_config("deepseek-v3") or {})):
        above = module.name.rpartition(".")[0]
        assert above in {*seen, ""}
        seen.add(module.name)


def test_classes_of_layers_that_a_model_leaves_out() -> None:
    assert absent_classes(shape_of(known_config("qwen3-30b-a3b") or {})) == {"Qwen3MoeMLP"}
    assert absent_classes(shape_of(known_config("deepseek-v3") or {})) == set()
