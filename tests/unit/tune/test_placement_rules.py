"""`kt_optimize_rule`: files of placement rules, as far as training follows them."""

from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import ConfigError
from inlay.core.hardware import machine_named
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.model_shape import ModelShape
from inlay.tune import TuneData
from inlay.tune.config import TuneConfig
from inlay.tune.placement_rules import Ruled, follow_rules
from inlay.tune.plan import RowCounts, plan_run
from inlay.tune.run import prepare
from inlay.tune.tuned_engine import tuned_engine
from tests.support.talk_rules import TALK
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import random_rows, settings

ON_GPU = r"""
- match:
    name: "^model\\.layers\\..*\\.mlp\\.experts$"
  replace:
    class: ktransformers.operators.experts.KTransformersExperts
    kwargs: {prefill_device: "cuda", generate_device: "cuda", generate_op: "KExpertsTorch"}
  recursive: False
"""


def deepseek_v3() -> ModelShape:
    return shape_of(known_config("deepseek-v3") or {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "rules.yaml"
    found.write_text(TALK)
    return found


def followed(file: Path, shape: ModelShape, gpus: int = 2, **more: Any) -> Ruled:
    config = TuneConfig(model_name_or_path="m", kt_optimize_rule=str(file), bf16=True, **more)
    return follow_rules(config, shape, gpus)


def test_layers_and_formats_are_as_the_rules_say(file: Path) -> None:
    ruled = followed(file, deepseek_v3())
    assert ruled.config.devices == ("cuda:0=30", "cuda:1=31")
    assert ruled.config.weight_format == "int8+bfloat16"
    assert "layers 0 to 29 on cuda:0, layers 30 to 60 on cuda:1" in ruled.notes[-2]
    assert "routed experts are held in int8" in ruled.notes[-1]
    machine, counts = machine_named("xeon-spr-2s+2x4090"), RowCounts.longest(ruled.config, None)
    plan = plan_run(ruled.config, deepseek_v3(), machine, counts, process=0)
    assert plan.expert_format == "int8" and list(plan.need.devices) == ["cuda:0", "cuda:1"]


def test_settings_go_before_rules(file: Path) -> None:
    ruled = followed(file, deepseek_v3(), devices=("cuda:1",), weight_format="int4")
    assert (ruled.config.devices, ruled.config.weight_format) == (("cuda:1",), "int4")
    said = "\n".join(ruled.notes)
    assert "devices=cuda:1 goes before it" in said and "int4 goes before it" in said


def test_rules_for_devices_that_are_not_there_are_told(file: Path) -> None:
    ruled = followed(file, deepseek_v3(), gpus=0)
    assert ruled.config.devices == () and ruled.config.weight_format == "int8+bfloat16"
    assert "this run has cpu and no cuda:0, cuda:1, so layers are on cpu" in "\n".join(ruled.notes)


def test_experts_are_trained_on_the_cpu(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(ON_GPU)
    ruled = followed(file, deepseek_v3(), gpus=1)
    assert ruled.config.devices == ("cuda:0=61",)
    assert any("routed experts are trained on the CPU" in note for note in ruled.notes)


def test_rules_that_do_not_fit_change_nothing(file: Path) -> None:
    ruled = followed(file, shape_of(known_config("deepseek-v2-lite") or {}))
    assert ruled.config.devices == () and ruled.config.weight_format == "auto"
    assert "rules.yaml is not followed: rule 2 (line 14)" in ruled.notes[0]
    missing = followed(file.with_name("other.yaml"), deepseek_v3())
    assert "there is no file" in missing.notes[0] and len(missing.notes) == 1


def test_a_file_that_is_no_list_of_rules_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("match: all")
    with pytest.raises(ConfigError, match="kt_optimize_rule: rules .*must be a list of rules"):
        followed(file, deepseek_v3())


def test_a_run_and_its_answers_hold_experts_alike(file: Path, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "deepseek_v3")
    file.write_text("- match" + TALK.split("- match")[1])
    config = settings(model, tmp_path / "out", kt_optimize_rule=str(file), bf16=True)
    prepared = prepare(config, TuneData(random_rows(8), None, ()))
    assert prepared.expert_format == "int8"
    assert any("routed experts are held in int8" in note for note in prepared.notes)
    assert tuned_engine(config).weight_format == "int8+bfloat16"
