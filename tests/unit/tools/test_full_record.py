"""The record of a full check."""

import json
from pathlib import Path

import pytest

from tools.checks.full_record import RECORD, counts, write_full_record
from tools.checks.runner import Outcome
from tools.checks.stages import Stage


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
