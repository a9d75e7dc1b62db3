"""What results say to people, and the records that are written of them."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks import record
from benchmarks.case import Run, load_case
from benchmarks.gpu_day.reading import entries_of, figure, report, short_of, write_records
from benchmarks.gpu_day.results import Results, Row, StageResult
from tests.support.tree import ROOT

SCHEMA = json.loads((ROOT / "benchmarks" / "record.schema.json").read_text())
MACHINE = {
    "machine": {
        "machine": {
            "cpu": "a processor", "cores": 16, "isa": "amx", "memory_gib": 128.0, "load_1m": 1.0,
            "gpus": ["NVIDIA H200"],
        },
        "versions": {"torch": "2.11.0"},
    }
}  # fmt: skip


def sample(case: str, name: str, params: dict[str, Any], value: float, **more: Any) -> Row:
    row = {"case": case, "name": name, "params": params, "values": [value], "limit": None}
    return {"samples": row | {"peers": {}, "seeds": []} | more}


def kernel_point(rows: int, weight_format: str) -> dict[str, Any]:
    """Of a dense layer."""
    run = Run(case=load_case("kernels/gpu"))
    return next(
        point
        for point in run.params("forward")
        if (point["kernel"], point["rows"], point["format"]) == ("linear", rows, weight_format)
    )


def model_point(name: str, share: float, streams: int = 1, prompt: int = 512) -> dict[str, Any]:
    run = Run(case=load_case("experts/on_gpu"))
    return next(
        point
        for point in run.params(name)
        if (point["gpu_share"], point.get("streams"), point.get("prompt"))
        == (share, streams, prompt)
    )


@pytest.fixture
def results() -> Results:
    kernels = StageResult(status="passed", commit=40 * "a", date="2026-11-28T00:00:00+00:00")
    kernels.rows = [
        MACHINE,
        sample(
            "kernels/gpu", "forward", kernel_point(4096, "int8"), 100.0,
            limit=["roof", 20.0], peers={"cuBLAS bf16 (torch 2.11.0)": [40.0]},
        ),
        sample("kernels/gpu", "forward", kernel_point(1, "int4:g32"), 8.0, limit=["roof", 2.0]),
    ]  # fmt: skip
    models = StageResult(status="timed out", commit=40 * "b", date="2026-11-28T00:05:00+00:00")
    models.rows = [
        MACHINE,
        sample("experts/on_gpu", "step_ms", model_point("step_ms", 1.0), 5.4),
        sample(
            "experts/on_gpu", "decode_tokens_per_s", model_point("decode_tokens_per_s", 1.0), 188.0
        ),
    ]
    tests = StageResult(status="failed", why="a check failed")
    tests.rows = [
        {"check": {"name": "test_a", "passed": False, "detail": "3 instead of 4"}},
        {"check": {"name": "test_b", "passed": True, "detail": ""}},
        {"left_out": {"what": "2 tests", "why": "fewer than two CUDA devices"}},
        {"fact": {"name": "errors: kernels", "value": {"test_c": {"of_tolerance": 0.8}}}},
    ]
    found = Results(rehearsal=False, budget_s=540.0)
    found.stages = {"tests": tests, "kernels": kernels, "models": models}
    return found


def test_what_passed_and_what_did_not(results: Results) -> None:
    lines = report(results).splitlines()
    assert lines[0].startswith("tests      failed") and lines[0].endswith(": a check failed")
    assert lines[1].startswith("kernels    passed")
    assert lines[2].startswith("models     timed out")
    assert "FAILED tests: test_a: 3 instead of 4" in lines
    assert "left out of tests: 2 tests: fewer than two CUDA devices" in lines
    assert "error of test_c: 0.80 of its tolerance" in lines
    assert not [line for line in lines if "test_b" in line]


def test_how_far_figures_are_from_their_targets(results: Results) -> None:
    """Dense layers of 4,096 rows ought to have 0.8 of cuBLAS, and one stream 1.8 ms a step."""
    dense = next(entry for entry in entries_of(results, "kernels/gpu") if "of_peer" in entry)
    assert dense["met"] is False
    assert figure(dense).endswith("target of_peer {'cuBLAS': 0.8}: NOT met, 2.00 times short")
    (step,) = [e for e in entries_of(results, "experts/on_gpu") if e["name"] == "step_ms"]
    assert figure(step).endswith("target at_most 1.8: NOT met, 3.00 times short")
    assert "target" not in figure(step, judged=False)


@pytest.mark.parametrize(
    ("part", "wanted", "entry", "factor"),
    [
        ("at_most", 2.0, {"value": 3.0}, 1.5),
        ("at_least", 2.0, {"value": 4.0}, 0.5),
        ("of_limit", 0.9, {"value": 1.0, "of_limit": 0.45}, 2.0),
        ("of_limit", 0.9, {"value": 1.0}, None),
        ("of_best_peer", 1.0, {"of_peer": {"a": 2.0, "b": 0.5}}, 2.0),
        ("of_best_peer", 1.0, {}, None),
        ("of_peer", {"a": 0.8}, {"of_peer": {"a 1": 0.4, "b": 0.1}}, 2.0),
        ("of_peer", {"a": 0.8}, {"of_peer": {"b": 0.1}}, None),
    ],
)
def test_distances(part: str, wanted: Any, entry: dict[str, Any], factor: float | None) -> None:
    assert short_of(part, wanted, entry) == factor


def test_every_target_of_these_cases_has_a_distance() -> None:
    for case in ("kernels/gpu", "experts/on_gpu"):
        for measurement in load_case(case).measurements:
            for part, wanted in measurement.target.items():
                short_of(part, wanted, {"value": 1.0})


def test_the_peer_stands_beside_the_same_cell(results: Results) -> None:
    peer = StageResult(status="passed")
    rates = {"1": {"prefill_tokens_per_s": 900.0, "decode_tokens_per_s": 94.0}}
    for layers, factor in ((12, 7.0), (48, 1.0)):
        of_layers = {"1": {name: factor * rate for name, rate in rates["1"].items()}}
        peer.rows.append(
            {"peer": {"label": "x", "layers": layers, "gpu_share": 1.0, "rates": of_layers}}
        )
    results.stages["llama_cpp"] = peer
    decode, step = entries_of(results, "experts/on_gpu")
    assert decode["peers"] == {"x": 94.0} and decode["of_peer"] == {"x": 2.0} and decode["met"]
    assert "peers" not in step


def test_records_are_those_of_the_kind_of_gpu(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    said = list(write_records(results))
    written = json.loads((tmp_path / "kernels" / "gpu" / "gpu-h200.json").read_text())
    jsonschema.validate(written, SCHEMA)
    assert written["commit"] == 40 * "a" and written["kind"] == "gpu-h200"
    assert [entry["value"] for entry in written["measurements"]] == [8.0, 100.0]  # as declared
    other = json.loads((tmp_path / "experts" / "on_gpu" / "gpu-h200.json").read_text())
    jsonschema.validate(other, SCHEMA)
    assert other["commit"] == 40 * "b"
    assert said[0].endswith(" figures") and ": 2 of " in said[0]


def test_a_record_of_more_figures_stays(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    list(write_records(results))
    file = tmp_path / "kernels" / "gpu" / "gpu-h200.json"
    before = file.read_text()
    results.stages["kernels"].rows.pop()
    said = list(write_records(results))
    assert file.read_text() == before
    assert (
        "kernels/gpu: not written: gpu-h200 has a record of 2 figures, and these are 1" in said[0]
    )


def test_a_rehearsal_leaves_no_records(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    results.rehearsal = True
    assert list(write_records(results)) == ["a rehearsal leaves no records"]
    assert not list(tmp_path.iterdir())
    assert report(results).startswith("A rehearsal: figures mean nothing.")
