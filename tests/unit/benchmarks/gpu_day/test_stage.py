"""What a stage says, and how its process ends."""

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_day import run_stage
from benchmarks.gpu_day.results import Results, ResultsError, StageResult, sample_key
from benchmarks.gpu_day.stage import CannotRunError, Context, OutOfTimeError
from benchmarks.triples import Samples

Outcome = tuple[int, list[dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run a function as a stage: the exit status, and its rows."""
    monkeypatch.setattr(run_stage.faulthandler, "dump_traceback_later", lambda *_: None)

    def run_it(stage: Callable[[Context], None], *options: str, seconds: float = 60.0) -> Outcome:
        module = types.ModuleType("benchmarks.gpu_day.stages.played")
        module.run = stage  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        rows = tmp_path / "rows"
        rows.unlink(missing_ok=True)
        command = ["run_stage", "played", "--rows", str(rows), "--seconds", str(seconds)]
        monkeypatch.setattr(
            sys, "argv", [*command, "--device", "cpu", "--work", str(tmp_path), *options]
        )
        status = run_stage.main()
        return status, [json.loads(line) for line in rows.read_text().splitlines()]

    return run_it


def test_facts_checks_and_samples(run: Callable[..., Outcome]) -> None:
    def stage(context: Context) -> None:
        assert context.rehearsal
        context.fact("speed", 3)
        context.check("a sum", True)
        context.left_out("a part", "there is no GPU")
        context.samples("a/b", Samples(name="forward", values=[2.0], limit=("roof", 1.0)))

    status, rows = run(stage)
    assert (status, run_stage.EXIT[status]) == (0, "passed")
    assert [next(iter(row)) for row in rows] == ["fact", "check", "left_out", "samples"]
    assert rows[-1]["samples"] == {
        "case": "a/b", "name": "forward", "params": {}, "values": [2.0], "limit": ["roof", 1.0],
        "peers": {}, "seeds": [],
    }  # fmt: skip


def test_a_block_that_raises_fails_the_stage_in_the_end(run: Callable[..., Outcome]) -> None:
    def stage(context: Context) -> None:
        with context.checking("one"):
            raise ValueError("3 instead of 4")
        with context.checking("another"):
            pass

    status, rows = run(stage)
    assert (status, run_stage.EXIT[status]) == (1, "failed")
    assert rows == [
        {"check": {"name": "one", "passed": False, "detail": "ValueError: 3 instead of 4"}},
        {"check": {"name": "another", "passed": True, "detail": ""}},
        {"why": "a check failed"},
    ]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (CannotRunError("there is no such program"), "could not run"),
        (OutOfTimeError("nothing was left"), "timed out"),
        (KeyError("x"), "failed"),
    ],
)
def test_how_a_stage_ends(run: Callable[..., Outcome], error: Exception, outcome: str) -> None:
    def stage(context: Context) -> None:
        # In a block, too: it is no fault of what the block checks.
        with context.checking("all"):
            raise error

    status, rows = run(stage)
    assert run_stage.EXIT[status] == outcome
    if outcome != "failed":
        assert rows == [{"why": str(error)}]


def test_what_there_is_no_time_for_is_not_begun(run: Callable[..., Outcome]) -> None:
    def stage(context: Context) -> None:
        context.need(10, "what is short")
        context.need(100, "what is long")

    status, rows = run(stage)
    assert run_stage.EXIT[status] == "timed out"
    assert rows[0]["why"].endswith("s were left before what is long")


def test_what_was_measured_before_is_known(run: Callable[..., Outcome], tmp_path: Path) -> None:
    keys = tmp_path / "measured"
    keys.write_text(json.dumps([sample_key("a/b", "forward", {"rows": 1, "format": "int8"})]))

    def stage(context: Context) -> None:
        for rows in (1, 2):
            known = context.is_measured("a/b", "forward", {"format": "int8", "rows": rows})
            context.fact("known", known)

    _, rows = run(stage, "--measured", str(keys))
    assert [row["fact"]["value"] for row in rows] == [True, False]


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    results = Results(rehearsal=True, budget_s=3.0, install={"core": "carried"})
    results.stages["facts"] = StageResult(status="failed", why="x", rows=[{"fact": {"name": "y"}}])
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"stages": {}}', '{"format": 1, "stages": {"a": 3}}'])
def test_what_holds_no_results_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ResultsError, match="holds no results of tools/gpu_day run"):
        Results.load(file)


def test_results_of_another_form_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text('{"format": 0, "stages": {}}')
    with pytest.raises(ResultsError, match="of another format"):
        Results.load(file)
