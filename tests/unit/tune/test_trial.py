"""Trials of a plan: they compute with what trains, and a plan takes what they say."""

import math
from dataclasses import replace
from typing import Any

import pytest

from inlay.core.hardware import machine_named
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.model_shape import ModelShape
from inlay.tune.batch_time import TYPICAL, BatchTime, Pace
from inlay.tune.config import TuneConfig
from inlay.tune.plan import RowCounts, plan_run
from inlay.tune.trial import measure_pace

MACHINE = machine_named("epyc-genoa")
SMALL = {"hidden_size": 64, "vocab_size": 128, "intermediate_size": 96, "num_hidden_layers": 3}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b": SMALL | GROUPED | {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    },
    "deepseek-v3": SMALL | {
        "num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 16,
        "num_experts_per_tok": 4, "moe_intermediate_size": 32, "q_lora_rank": 32,
        "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "first_k_dense_replace": 1, "quantization_config": None,
    },
}  # fmt: skip
COUNTS = RowCounts(rows=4, mean_tokens=16, batch_tokens=32)


def small(model: str) -> ModelShape:
    """A known model's shape, made small."""
    return shape_of((known_config(model) or {}) | MODELS[model])


def settings(**more: Any) -> TuneConfig:
    given: dict[str, Any] = {"per_device_train_batch_size": 2, "cutoff_len": 16, "use_cpu": True}
    return TuneConfig(model_name_or_path="m", **(given | more))


@pytest.mark.parametrize(
    "model, options",
    [
        ("qwen3-30b-a3b", {"lora_target": ("q_proj",)}),
        ("qwen3-30b-a3b", {"bf16": True, "weight_format": "int8", "pure_bf16": True}),
        ("deepseek-v3", {"bf16": True, "disable_gradient_checkpointing": True}),
        ("deepseek-v3", {"kt_cpu_activation": "retain"}),
    ],
)
def test_every_kind_of_run_has_a_pace(model: str, options: dict[str, Any]) -> None:
    shape, config = small(model), settings(**options)
    pace = measure_pace(config, shape, MACHINE, COUNTS)
    assert all(0 < one < math.inf for one in (pace.experts, pace.head, pace.layers))
    assert pace.source == "trials of 32 tokens on this machine"
    plan = plan_run(config, shape, MACHINE, COUNTS, process=0, pace=pace)
    assert plan.pace == pace and 0 < plan.tokens_per_s < math.inf


def test_a_dense_model_has_no_experts_to_try() -> None:
    dense = replace(
        small("qwen3-30b-a3b"), sparse_layers=(), experts=0, experts_per_token=0, moe_intermediate=0
    )
    assert measure_pace(settings(), dense, MACHINE, COUNTS).experts == 1


def test_the_pace_multiplies_what_processors_take() -> None:
    shape, config = small("deepseek-v3"), settings()
    one = Pace(experts=1, head=1, layers=1, source="")
    slow = replace(one, experts=3, head=5, layers=7)
    plain, slowed = (
        BatchTime(config, shape, MACHINE, pace, 0.0, 32, 16).seconds("float32")
        for pace in (one, slow)
    )
    for name, seconds in plain.items():
        times = {"routed experts": 3, "output matrix": 5}.get(name, 7)
        assert slowed[name] == pytest.approx(times * seconds), name
    gpu = machine_named("epyc-genoa+h800")
    on_gpu = [
        BatchTime(config, shape, gpu, pace, 1.0, 32, 16).seconds("float32") for pace in (one, slow)
    ]
    slower = {name for name in on_gpu[0] if on_gpu[1][name] > on_gpu[0][name]}
    assert slower == {"routed experts"}


def test_machines_of_the_catalogue_have_the_typical_pace() -> None:
    shape = small("qwen3-30b-a3b")
    plan = plan_run(settings(), shape, MACHINE, COUNTS, process=0)
    assert plan.pace is TYPICAL
    assert min(TYPICAL.experts, TYPICAL.head, TYPICAL.layers) >= 1
