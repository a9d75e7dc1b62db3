"""What `inlay tune plan` says, from config.json alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import ResourceError
from inlay.core.hardware import machine_named
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.serve import cli
from inlay.tune.config import TuneConfig
from inlay.tune.memory import MemoryNeed, MemoryUse
from inlay.tune.plan import RowCounts, RunPlan, plan_run

# GB in host memory, as the talk has it; of all GPUs where only weights count much.
TALK_HOST = {
    "deepseek-v2-lite": 30,
    "deepseek-v3": 1200,
    "kimi-k2": 2100,
    "qwen3-235b-a22b": 455,
}
TALK_GPU = {"qwen3-235b-a22b": 16}
MACHINE = "xeon-spr-2s+2x4090"


def planned(model: str, machine: str = MACHINE, *, rows: int | None = 1000, **more: Any) -> RunPlan:
    """With the talk's settings: rank 8, rows of 512 tokens, 16 of them a step, in bfloat16."""
    config = known_config(model)
    assert config is not None
    settings: dict[str, Any] = {
        "model_name_or_path": model,
        "weight_format": "bfloat16",
        "bf16": True,
        "lora_rank": 8,
        "cutoff_len": 512,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 16,
    }
    run = TuneConfig(**(settings | more))
    counts = RowCounts.longest(run, rows)
    return plan_run(run, shape_of(config), machine_named(machine), counts, process=300 << 20)


@pytest.mark.parametrize("model", TALK_HOST)
def test_memory_is_near_what_the_talk_has(model: str) -> None:
    need = planned(model).need
    assert need.host.total / 1e9 == pytest.approx(TALK_HOST[model], rel=0.15)
    if model in TALK_GPU:
        held = sum(use.total for use in need.devices.values())
        assert held / 1e9 == pytest.approx(TALK_GPU[model], rel=0.15)


def test_a_format_of_fewer_bits_takes_less() -> None:
    sizes = [
        planned("deepseek-v3", weight_format=name).need.host.weights
        for name in ("bfloat16", "fp8:g128", "int4:g32")
    ]
    assert sizes[0] > 1.9 * sizes[1] > 1.9 * 1.7 * sizes[2]
    published = planned("kimi-k2", weight_format="auto")
    assert published.expert_format == "fp8:g128"


def test_layers_are_divided_among_gpus() -> None:
    one, two = (planned("deepseek-v3", f"xeon-spr-2s+{n}x4090").need for n in (1, 2))
    assert one.host == two.host
    whole = one.devices["cuda:0"].weights
    assert sum(use.weights for use in two.devices.values()) == whole
    assert two.devices["cuda:0"].weights < 0.6 * whole
    some = planned("deepseek-v3", devices=("cuda:1=20", "cpu=41")).need
    assert list(some.devices) == ["cuda:1"]
    assert some.host.weights == two.host.weights + whole - some.devices["cuda:1"].weights


def test_without_a_gpu_the_host_has_all() -> None:
    both, host = planned("deepseek-v2-lite"), planned("deepseek-v2-lite", "xeon-spr-2s")
    ignored = planned("deepseek-v2-lite", use_cpu=True)
    assert host.need == ignored.need and not host.need.devices
    assert host.need.host.weights == both.need.host.weights + sum(
        use.weights for use in both.need.devices.values()
    )
    assert host.tokens_per_s < both.tokens_per_s


def test_time_follows_from_the_roofline() -> None:
    plan = planned("deepseek-v3")
    assert sum(plan.seconds.values()) == plan.step_s
    assert max(plan.seconds, key=plan.seconds.__getitem__) == "routed experts"
    assert plan.step_tokens == 16 * 512
    assert plan.steps == 3 * 63 and plan.hours == pytest.approx(plan.steps * plan.step_s / 3600)
    kept = planned("deepseek-v3", kt_cpu_activation="retain", disable_gradient_checkpointing=True)
    assert kept.step_s < 0.7 * plan.step_s
    kept_use, use = (one.need.devices["cuda:0"] for one in (kept, plan))
    assert kept_use.activations > 5 * use.activations
    unknown = planned("deepseek-v3", rows=None)
    assert unknown.steps is None and unknown.hours is None
    assert planned("deepseek-v3", rows=None, max_steps=7).steps == 7


@pytest.mark.parametrize(
    "use, advice",
    [
        (MemoryUse(weights=90, lora=5, activations=5), "set weight_format=int8 or int4"),
        (MemoryUse(weights=30, lora=60, activations=10), "lower lora_rank, set pure_bf16=true"),
        (
            MemoryUse(weights=20, lora=20, activations=60),
            "gradient_accumulation_steps=16 for tight memory, lower cutoff_len, and see with "
            "max_samples=100",
        ),
    ],
)
def test_too_little_memory_says_what_to_lower(use: MemoryUse, advice: str) -> None:
    need = MemoryNeed(use, {"cuda:0": replace(use, process=7)})
    need.check(100, {"cuda:0": 107})
    with pytest.raises(ResourceError, match=advice):
        need.check(99, {"cuda:0": 107})
    with pytest.raises(ResourceError, match="of memory of cuda:0"):
        need.check(100, {"cuda:0": 106})


def test_the_command_needs_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model_name_or_path: qwen3-30b-a3b\nbf16: true\nlora_rank: 8\n")
    given = ["tune", "plan", str(file), "per_device_train_batch_size=1", "cutoff_len=512"]
    arguments = [*given, "--machine", "xeon-spr-2s+4090", "--rows", "500"]
    assert cli.run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simulated"] is True and found["steps"] == 1500
    assert found["memory"]["host"]["weights"] > 57e9
    assert found["memory"]["cuda:0"]["total"] < found["memory"]["cuda:0"]["room"]
    assert cli.run(arguments) == 0
    text = capsys.readouterr().out
    assert "1500 steps" in text and "simulated, not measured by us" in " ".join(text.split())


def test_the_command_refuses_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model_name_or_path: deepseek-v3\nbf16: true\n")
    assert cli.run(["tune", "plan", str(file), "--machine", "xeon-spr-2s", "weight_format=bf16"])
    assert "set weight_format=int8 or int4" in capsys.readouterr().err
