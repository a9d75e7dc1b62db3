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
OURS = re.compile(r"self_attn\.rotary_emb$")
# What computes no part of its own: each activation is in its MLP.
THEIRS = re.compile(r"act_fn$")


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
