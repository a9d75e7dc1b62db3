"""The record of a full check."""

import json
import subprocess
from pathlib import Path

import pytest

from tools.checks.full_record import RECORD, counts, passed_before, write_full_record
from tools.checks.runner import Outcome
from tools.checks.stages import STAGES, Stage


@pytest.mark.parametrize(
    ("closing", "found"),
    [
        (
            ["=== 2 failed, 12 passed, 1 skipped, 3 deselected in 5.2s (0:00:05) ==="],
            {"failed": 2, "passed": 12, "skipped": 1, "deselected": 3},
        ),
        (["98% tests passed, 2 tests failed out of 80"], {"passed": 78, "failed": 2}),
        (
            ["100% tests passed, 0 tests failed out of 8", "=== 5 passed in 0.1s ==="],
            {"passed": 13, "failed": 0},
        ),
        ([], {}),
    ],
)
def test_counts(closing: list[str], found: dict[str, int]) -> None:
    assert counts(closing) == found


def test_the_record_says_what_each_stage_took(tmp_path: Path) -> None:
    (tmp_path / RECORD).parent.mkdir(parents=True)
    stage = Stage(name="unit", proves="")
    closing = ["=== 5 passed in 9s ==="]
    outcomes = [
        Outcome(stage, "ok", seconds=9.4, cpu_s=8.6, closing=closing),
        Outcome(Stage(name="tsan", proves=""), "too long", seconds=60.0),
    ]
    write_full_record(tmp_path, outcomes, 70.2)
    record = json.loads((tmp_path / RECORD).read_text())
    assert record["passed"] is False and record["seconds"] == 70
    assert record["stages"] == {
        "unit": {"result": "ok", "seconds": 9, "processor_seconds": 9, "passed": 5},
        "tsan": {"result": "too long", "seconds": 60, "processor_seconds": 0},
    }
    assert {"commit", "date", "machine"} <= record.keys()


TSAN = Stage(name="tsan", proves="", inputs=("native", "CMakeLists.txt"))
UNIT = Stage(name="unit", proves="")


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """A repository whose last commit holds the record of a full check of the one before."""
    for name in ("native/a.cpp", "CMakeLists.txt", "src/a.py", RECORD):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    _git(tmp_path, "init", "-q")
    record(tmp_path, _commit(tmp_path))
    _commit(tmp_path)
    return tmp_path


def record(root: Path, commit: str, result: str = "ok") -> None:
    stages = {"tsan": {"result": result}, "unit": {"result": "ok"}}
    (root / RECORD).write_text(json.dumps({"commit": commit, "stages": stages}))


def _git(root: Path, *arguments: str) -> str:
    user = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    command = ["git", "-C", str(root), *user, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _commit(root: Path) -> str:
    _git(root, "add", ".")
    _git(root, "commit", "-q", "-m", "A change")
    return _git(root, "rev-parse", "HEAD")


def test_a_stage_whose_inputs_the_full_check_has_seen(checked: Path) -> None:
    commit = _git(checked, "rev-parse", "HEAD~1")
    assert passed_before(checked, [TSAN, UNIT]) == {"tsan": commit}
    (checked / "src/a.py").write_text("2")
    _commit(checked)
    assert passed_before(checked, [TSAN, UNIT]) == {"tsan": commit}


@pytest.mark.parametrize("file", ["native/a.cpp", "native/new.cpp", "CMakeLists.txt"])
@pytest.mark.parametrize("committed", [False, True])
def test_a_changed_input_runs_the_stage(checked: Path, file: str, committed: bool) -> None:
    (checked / file).write_text("2")
    if committed:
        _commit(checked)
    assert passed_before(checked, [TSAN]) == {}


def test_what_no_program_under_sanitizers_has_does_not_run_them(checked: Path) -> None:
    (tsan,) = (stage for stage in STAGES if stage.name == "tsan")
    for name in ("native/sim/a.cpp", "native/bindings/a.cpp"):
        (checked / name).parent.mkdir()
        (checked / name).write_text("2")
    assert passed_before(checked, [tsan]).keys() == {"tsan"}
    (checked / "native/tests").mkdir()
    (checked / "native/tests/sim_test.cpp").write_text("2")
    assert passed_before(checked, [tsan]) == {}


@pytest.mark.parametrize("result", ["FAILED", "too long", "not run"])
def test_what_failed_there_runs(checked: Path, result: str) -> None:
    record(checked, _git(checked, "rev-parse", "HEAD~1"), result)
    assert passed_before(checked, [TSAN]) == {}


@pytest.mark.parametrize("commit", ["0" * 40, "unknown", "HEAD+changes"])
def test_a_commit_that_is_not_here_counts_for_nothing(checked: Path, commit: str) -> None:
    record(checked, commit)
    assert passed_before(checked, [TSAN]) == {}


def test_without_a_record_all_stages_run(checked: Path) -> None:
    (checked / RECORD).unlink()
    assert passed_before(checked, [TSAN]) == {}
