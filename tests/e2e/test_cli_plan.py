"""This machine is measured, kept, and planned for."""

import json
from pathlib import Path

import pytest

from inlay.kernels import isa
from tests.e2e.test_cli_errors import assert_one_line, inlay
from tests.support.tree import ROOT


@pytest.mark.skipif(isa.native_problem() is not None, reason="measuring needs compiled kernels")
def test_a_plan_for_this_machine(tmp_path: Path) -> None:
    saved = tmp_path / "machine.toml"
    doctor = inlay("doctor", "--save", str(saved), INLAY_CACHE_DIR=str(tmp_path))
    assert doctor.returncode == 0, doctor.stderr
    plan = inlay("plan", "qwen3-8b", "--weight-format", "int4", "--context", "512", "--json",
                 INLAY_CACHE_DIR=str(tmp_path))  # fmt: skip
    assert plan.returncode == 0, plan.stderr
    found = json.loads(plan.stdout)
    assert str(saved) in found["origin"]
    assert found["machine"]["origin"] == "measured" and not found["simulated"]
    node = found["machine"]["nodes"][0]
    assert node["bandwidth_gbs"] > 0.5 and node["tflops"]["int8"] > 0
    assert found["decode"][0]["tokens_per_s"] > 0
    assert "--save" in inlay("doctor", "--topology", "--save", str(saved)).stderr


def test_rules_on_a_machine_of_the_catalogue() -> None:
    example = str(ROOT / "examples/placement/two_gpus.yaml")
    machine = ["--machine", "xeon-spr-2s+2x4090", "--rules", example]
    plan = inlay("plan", "deepseek-v3", *machine)
    assert plan.returncode == 0, plan.stderr
    assert "model.layers.30-60.mlp.experts cuda:1" in " ".join(plan.stdout.split())
    assert_one_line(
        inlay("plan", "deepseek-v3", "--machine", "xeon-spr-2s+4090", "--rules", example),
        2,
        "rule 2 (line 18): prefill_device is cuda:1, and this machine has cpu, cuda:0",
    )
