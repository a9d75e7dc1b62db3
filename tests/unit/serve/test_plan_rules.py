"""`inlay plan --rules`: the table of modules, memory and speed where rules say what runs where."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from inlay.core.errors import ResourceError
from inlay.core.hardware import machine_named
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.experts import parse_rules, place_by_rules
from inlay.serve.plan.changes import find_changes
from inlay.serve.plan.make import Plan, make_plan
from inlay.serve.plan.model import find_model
from inlay.serve.plan.modules import module_rows
from inlay.serve.plan.record import as_dict, notes
from inlay.serve.plan.report import print_plan
from tests.support.tree import ROOT
from tests.unit.serve.test_plan import run

EXAMPLE = ROOT / "examples/placement/two_gpus.yaml"
ON_CPU = """
- match: {name: "\\\\.mlp\\\\.experts$"}
  replace: {kwargs: {generate_device: "cpu", prefill_device: "cpu"}}
"""


def plan(rules: str, model: str = "deepseek-v3", **options: Any) -> Plan:
    machine = machine_named(options.pop("machine", "xeon-spr-2s+2x4090"))
    return make_plan(
        find_model(model), machine, origin="for a test", rules=parse_rules(rules), **options
    )


def rows(rules: str, model: str = "deepseek-v3") -> list[tuple[str, str, str, str]]:
    shape = shape_of(known_config(model) or {})
    placed = place_by_rules(shape, parse_rules(rules), ("cpu", "cuda:0", "cuda:1"))
    return [
        (row.modules, row.prefill.device, row.decode.device, row.why) for row in module_rows(placed)
    ]


def test_layers_alike_and_modules_with_the_one_above_are_one_row() -> None:
    assert rows(EXAMPLE.read_text()) == [
        ("model.embed_tokens", "cpu", "cpu", "rows are looked up there"),
        ("model.layers.0-29", "cuda:0", "cuda:0", "with its layer"),
        ("model.layers.3-29.mlp.experts", "cuda:0", "cpu", "rule 1"),
        ("model.layers.30-60", "cuda:1", "cuda:1", "with its layer"),
        ("model.layers.30-60.mlp.experts", "cuda:1", "cpu", "rule 2"),
        ("model.norm", "cuda:1", "cuda:1", "with the last layer"),
        ("lm_head", "cuda:1", "cuda:1", "with the last layer"),
    ]


def test_rules_of_what_has_no_row_are_told_with_the_one_above() -> None:
    rules = """
- match: {name: "layers.[0-9]*[02468].self_attn"}
  replace: {kwargs: {generate_device: "cuda:1"}}
- match: {name: "layers.[0-9]*[02468].mlp.gate_proj"}
  replace: {kwargs: {generate_device: "cuda:1"}}
"""
    layers = [row for row in rows(rules, "qwen3-8b") if row[0].startswith("model.layers")]
    even, odd = (",".join(str(one) for one in range(first, 36, 2)) for first in (0, 1))
    assert layers == [
        (f"model.layers.{even}", "cuda:1", "cuda:1", "rules 1, 2"),
        (f"model.layers.{odd}", "cuda:0", "cuda:0", "with its layer"),
    ]


def test_memory_and_speed_are_those_of_the_placement() -> None:
    made = plan(EXAMPLE.read_text())
    assert made.formats.experts == "int8" and made.formats.mlp == "fp8:g128"
    assert [use.name for use in made.placement.uses] == ["cpu", "cuda:0", "cuda:1"]
    assert made.placement.uses[0].weights_bytes > 653e9
    # Rules say that weights are brought for prompts, and that the CPU decodes.
    assert made.prefill[0].bound.limit == "link"
    assert made.decode[0].bound.device == "cpu"
    experts_s = made.decode[0].seconds * made.decode[0].bound.share
    assert 1 < experts_s / (653.9e9 * 8 / 256 / 440e9) < 1.1
    host = plan(EXAMPLE.read_text().replace('prefill_device: "cuda:0"', 'prefill_device: "cpu"'))
    assert host.placement.prefill == "auto"  # of two kinds
    on_cpu = plan(ON_CPU, weight_format="int8", context=2048)
    assert on_cpu.placement.prefill == "host"
    assert {speed.bound.device for speed in on_cpu.prefill} == {"cpu"}


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(
        ResourceError,
        match=r"cuda:0 has 24.0 GB, and .* experts 0.0.*What fits: --weight-format int8:g32; or "
        "--weight-format int4:g32; or the same without --rules$",
    ):
        plan(ON_CPU, "glm-4.5", machine="xeon-spr-2s+4090", weight_format="bfloat16")
    resident = ON_CPU.replace('"cpu"', '"cuda:0"')
    with pytest.raises(ResourceError, match="routed experts 674.*What fits: the same without --r"):
        plan(resident)


def test_changes_keep_the_rules_but_for_the_one_without() -> None:
    made = plan(ON_CPU, "qwen3-30b-a3b", weight_format="int4")
    found = {change.what: change for change in find_changes(made)}
    assert "GPUs with twice the memory" not in found  # the rules would not use it
    by_cost = found["places by cost, without --rules"]
    assert by_cost.decode_times > 1.2


def test_a_weight_format_of_the_command_line_wins_and_says_so() -> None:
    made = plan(EXAMPLE.read_text(), weight_format="int4")
    assert made.formats.experts == "int4:g32"
    told = "backend asks for experts in int8, and they are in int4:g32: --weight-format says so"
    assert told in notes(made)
    assert not any("backend" in note for note in notes(plan(EXAMPLE.read_text())))


def test_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["deepseek-v3", "--machine", "xeon-spr-2s+2x4090", "--rules", str(EXAMPLE)]
    code, out, _ = run(*arguments, "--json", capsys=capsys)
    assert code == 0
    found = json.loads(out)
    assert found["rules"]["experts_format"] == "int8"
    assert found["rules"]["modules"][2] == {
        "modules": "model.layers.3-29.mlp.experts",
        "prefill": {"device": "cuda:0", "operator": "weights brought for each step"},
        "decode": {"device": "cpu", "operator": "CPU kernels in int8"},
        "rules": [1],
        "why": "rule 1",
    }
    made = plan(EXAMPLE.read_text())
    console = Console(file=io.StringIO(), width=160)
    print_plan(console, made, find_changes(made))
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    operators = "weights brought for each step; CPU kernels in int8"
    assert f"model.layers.3-29.mlp.experts cuda:0 cpu {operators} rule 1" in text
    assert as_dict(plan("- match: {name: lm_head}\n  replace: {}", "qwen3-8b"), [])["rules"]
    assert as_dict(make_plan(made.model, made.machine, origin=""), [])["rules"] is None


@pytest.mark.parametrize(
    ("content", "model", "message"),
    [
        ("- 12", "deepseek-v3", r"rules {file}: rule 1 (line 1): a rule must be a table"),
        ("- match: {name: x}\n  replace: {}", "qwen3-8b", "rule 1 (line 1): it matches no module"),
        (
            '- match: {name: lm_head}\n  replace: {kwargs: {generate_device: "cuda:2"}}',
            "qwen3-8b",
            "generate_device is cuda:2, and this machine has cpu, cuda:0, cuda:1",
        ),
    ],
)
def test_rules_that_cannot_be_followed(
    content: str, model: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(content)
    machine = ["--machine", "xeon-spr-2s+2x4090"]
    code, out, err = run(model, *machine, "--rules", str(file), capsys=capsys)
    assert (code, out) == (2, "")
    assert message.format(file=file) in err and err.count("inlay: error: ") == 1
