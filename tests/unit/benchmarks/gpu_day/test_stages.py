"""The list of stages is whole, and what the stages name exists."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_day.error_sizes import VARIABLE
from benchmarks.gpu_day.rehearsal import BUDGET_S
from benchmarks.gpu_day.runner import TO_END_S
from benchmarks.gpu_day.stage_list import JOBS, STAGES
from benchmarks.gpu_day.stages import sanitizer
from benchmarks.gpu_day.stages import tests as tests_stage
from tests.support.tree import ROOT


def test_each_stage_has_a_module() -> None:
    modules = {file.stem for file in (ROOT / "benchmarks/gpu_day/stages").glob("[a-z]*.py")}
    assert modules == {stage.name for stage in STAGES}
    for stage in STAGES:
        assert importlib.util.find_spec(f"benchmarks.gpu_day.stages.{stage.name}")


def test_stages_can_be_begun() -> None:
    for stage in STAGES:
        assert set(stage.needs) <= JOBS.keys()
        assert stage.least_s <= stage.limit_s


def test_a_rehearsal_ends_within_seven_minutes() -> None:
    assert BUDGET_S <= 420 and BUDGET_S > TO_END_S


def test_all_tests_that_need_a_gpu_are_in_a_group() -> None:
    """Files with the marker, the folder whose tests become a GPU's where there is one aside."""
    named = {path for group in tests_stage.GROUPS for path in group.paths}
    marked = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if "mark.gpu" in file.read_text() or "mark.multi_gpu" in file.read_text()
        if file != Path(__file__)
    }
    alone = {path for path in marked if not path.startswith("tests/unit/models/gpu/")}
    assert alone == named - {"tests/unit/models/gpu"}


def test_what_the_sanitizer_watches_exists() -> None:
    names = {f"{sanitizer.FOLDER}/{test}" for test in (*sanitizer.ADDRESSES, *sanitizer.RACES)}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *sorted(names)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert names <= set(done.stdout.splitlines())


TESTS = """
import torch
def assert_near(found, expected):
    pass
def test_close():
    torch.testing.assert_close(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]), rtol=0, atol=2.0)
def test_near():
    assert_near(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]))
def test_nothing():
    assert not torch.zeros(1).any()
def test_wrong():
    torch.testing.assert_close(torch.tensor([4.0]), torch.tensor([2.0]), rtol=0, atol=1.0)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Tests that were run with the plugin: the report, and the sizes of errors."""
    folder = tmp_path_factory.mktemp("errors")
    (folder / "test_it.py").write_text(TESTS)
    report, errors = folder / "report.xml", folder / "errors"
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.gpu_day.error_sizes",
        "-p", "no:cacheprovider", "--rootdir", str(folder), f"--junitxml={report}",
        "--import-mode=importlib", str(folder / "test_it.py"),
    ]  # fmt: skip
    environment = {"PYTHONPATH": str(ROOT), VARIABLE: str(errors), "HOME": str(folder)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr  # one is wrong
    return report, errors


def test_sizes_of_errors_are_written_down(ran: tuple[Path, Path]) -> None:
    found = tests_stage.largest_errors(ran[1])
    assert found == {
        "test_it.py::test_close": {"absolute": 0.5, "of_tolerance": 0.25},
        "test_it.py::test_near": {"of_norm": 1.25},
        "test_it.py::test_wrong": {"absolute": 2.0, "of_tolerance": 2.0},
    }
    assert tests_stage.largest_errors(ran[1].with_name("none")) == {}


def test_outcomes_of_tests_are_read(ran: tuple[Path, Path]) -> None:
    found = {name.partition("::")[2]: rest for name, *rest in tests_stage.outcomes(ran[0])}
    assert found["test_close"] == ["passed", ""]
    assert found["test_wrong"][0] == "failed" and "not close" in found["test_wrong"][1]


def test_launches_are_counted_by_name() -> None:
    from benchmarks.experts.gpu_idle import Idle
    from benchmarks.gpu_day.stages.profile import summary

    idle = Idle(span_s=0.010, busy_s=0.004, seconds_of={"a": (0.003, 20), "b": (0.001, 10)})
    said = summary(idle, layer_runs=6)
    assert said["launches_per_layer"] == 5.0 and said["idle_share"] == 0.6
    assert json.loads(json.dumps(said))["kernels"] == {"a": [3.0, 20], "b": [1.0, 10]}
