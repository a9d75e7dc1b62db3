"""Stages that fail, hang, crash and leave children behind, within a budget; played by a script."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu_day import runner
from benchmarks.gpu_day.results import Results, StageResult
from benchmarks.gpu_day.runner import Plan, Runner, end_group, read_rows
from benchmarks.gpu_day.stage_list import Stage

# What a stage of that name does; `say` adds a row.
SCRIPT = """
import json, os, pathlib, signal, subprocess, sys, time
name = sys.argv[1]
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
def say(**row):
    with open(options["--rows"], "a") as file:
        file.write(json.dumps(row) + "\\n")
if name == "passes":
    say(fact={"name": "options", "value": options})
elif name == "fails":
    say(check={"name": "a sum", "passed": False, "detail": "3 instead of 4"})
    say(why="a check failed")
    sys.exit(1)
elif name == "crashes":
    say(fact={"name": "before", "value": 1})
    os.kill(os.getpid(), signal.SIGSEGV)
elif name == "hangs":
    say(fact={"name": "before", "value": 1})
    signal.signal(signal.SIGABRT, signal.SIG_IGN)
    time.sleep(1000)
elif name == "leaves":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    say(fact={"name": "child", "value": child.pid})
elif name == "lacks":
    say(why="there is no such program")
    sys.exit(3)
elif name == "late":
    say(why="too little time")
    sys.exit(4)
elif name == "measures":
    old = json.loads(pathlib.Path(options["--measured"]).read_text()) if "--measured" in options else []
    for rows in (1, 2):
        params = {"rows": rows}
        if json.dumps(["a/b", "forward", params], sort_keys=True) not in old:
            say(samples={"case": "a/b", "name": "forward", "params": params, "values": [len(old)]})
    sys.exit(0 if old else 1)
"""  # noqa: E501


def stage(name: str, limit_s: float = 30.0, least_s: float = 0.1, needs: str = "") -> Stage:
    return Stage(
        name=name,
        about="",
        limit_s=limit_s,
        rehearsal_s=limit_s,
        least_s=least_s,
        needs=tuple(needs.split()),
    )


Run = Callable[..., Results]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run stages; the results are those of the file."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(runner, "ABORT_S", 0.2)
    monkeypatch.setattr(runner, "TO_END_S", 0.0)

    def run_stages(
        *stages: Stage,
        budget_s: float = 60.0,
        earlier: Results | None = None,
        jobs: dict[str, str] | None = None,
        saved: Callable[[], None] = lambda: None,
    ) -> Results:
        plan = Plan(
            stages=stages,
            device="cuda:0",
            commit="abc",
            tree=tmp_path,
            work=tmp_path / "work",
            environment=os.environ,
            command=lambda name: [sys.executable, str(script), name],
            job_command=lambda name: [sys.executable, "-c", (jobs or {})[name]],
        )
        results = Results(rehearsal=False, budget_s=budget_s)
        file = tmp_path / "results.json"
        deadline_s = time.monotonic() + budget_s
        Runner(plan, results, file, deadline_s, earlier, saved).run()
        return Results.load(file)

    return run_stages


def test_a_failing_stage_stops_none_after_it(run: Run) -> None:
    names = ["fails", "crashes", "lacks", "late", "passes"]
    stages = run(*map(stage, names)).stages
    assert {name: stages[name].status for name in names} == {
        "fails": "failed",
        "crashes": "failed",
        "lacks": "could not run",
        "late": "timed out",
        "passes": "passed",
    }
    assert stages["crashes"].why.startswith("the process ended with SIGSEGV, after")
    assert stages["lacks"].why == "there is no such program"
    assert list(stages["fails"].of_kind("check"))[0]["detail"] == "3 instead of 4"
    assert all(one.commit == "abc" and one.date for one in stages.values())


def test_one_that_hangs_is_ended_and_what_it_said_is_kept(run: Run) -> None:
    begin_s = time.monotonic()
    stages = run(stage("hangs", limit_s=1.0), stage("passes")).stages
    assert stages["hangs"].status == "timed out" and stages["passes"].status == "passed"
    assert "ended after 1 s" in stages["hangs"].why
    assert list(stages["hangs"].of_kind("fact")) == [{"name": "before", "value": 1}]
    assert time.monotonic() - begin_s < 500  # it would have slept for 1000 s


def test_children_do_not_outlive_their_stage(run: Run) -> None:
    (fact,) = run(stage("leaves")).stages["leaves"].of_kind("fact")
    for _ in range(500):
        state = Path(f"/proc/{fact['value']}/stat")
        # Whoever it was given to may not have waited for it yet.
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError("the child still runs")


def test_what_the_budget_has_no_room_for_is_not_begun(run: Run) -> None:
    stages = run(stage("passes", least_s=20.0), stage("lacks"), budget_s=15.0).stages
    assert stages["passes"].status == "not begun"
    assert "of the budget are left" in stages["passes"].why
    assert stages["lacks"].status == "could not run"  # a shorter one still is


def test_a_stage_is_told_what_is_left(run: Run) -> None:
    (fact,) = run(stage("passes", limit_s=1000.0), budget_s=40.0).stages["passes"].of_kind("fact")
    assert float(fact["value"]["--seconds"]) <= 40.0
    assert fact["value"]["--device"] == "cuda:0" and "--measured" not in fact["value"]


def test_results_are_written_after_each_stage(run: Run, tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    def saved() -> None:
        found = Results.load(tmp_path / "results.json").stages
        seen.append({name: one.status for name, one in found.items()})

    run(stage("fails"), stage("passes"), saved=saved)
    assert seen[:3] == [{}, {"fails": "failed"}, {"fails": "failed", "passes": "passed"}]


def test_what_passed_before_is_not_run_again(run: Run) -> None:
    earlier = Results(rehearsal=False, budget_s=1.0)
    earlier.stages["passes"] = StageResult(status="passed", commit="old", rows=[{"fact": 1}])
    earlier.stages["lacks"] = StageResult(status="failed", commit="old")
    stages = run(stage("passes"), stage("lacks"), earlier=earlier).stages
    assert (stages["passes"].commit, stages["passes"].rows) == ("old", [{"fact": 1}])
    assert stages["passes"].resumed and not stages["lacks"].resumed
    assert (stages["lacks"].commit, stages["lacks"].status) == ("abc", "could not run")


def test_what_was_measured_before_a_failure_is_not_measured_again(run: Run) -> None:
    first = run(stage("measures"))
    assert first.stages["measures"].status == "failed"
    first.stages["measures"].rows.pop()
    again = run(stage("measures"), earlier=first).stages["measures"]
    assert again.status == "passed"
    found = [(one["params"]["rows"], one["values"]) for one in again.of_kind("samples")]
    assert found == [(1, [0]), (2, [1])]


def test_what_another_commit_measured_is_measured_again(run: Run) -> None:
    first = run(stage("measures"))
    first.stages["measures"].commit = "another"
    assert run(stage("measures"), earlier=first).stages["measures"].status == "failed"


def test_one_that_is_ended_from_outside_leaves_what_it_knows(run: Run, tmp_path: Path) -> None:
    """As by SIGTERM, which `run` turns into an exception."""

    def stop(*_: object) -> None:
        raise SystemExit(143)

    def when_it_hangs() -> None:
        rows = tmp_path / "work" / "hangs.rows"
        while not (rows.exists() and read_rows(rows)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    threading.Thread(target=when_it_hangs, daemon=True).start()
    try:
        with pytest.raises(SystemExit):
            run(stage("hangs"), stage("passes"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    stages = Results.load(tmp_path / "results.json").stages
    assert stages.keys() == {"hangs"} and stages["hangs"].status == "timed out"
    assert stages["hangs"].why == "ended from outside: SystemExit(143)"
    assert list(stages["hangs"].of_kind("fact")) == [{"name": "before", "value": 1}]


def test_jobs_run_beside_stages_and_are_waited_for(run: Run, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    jobs = {"model": f"open({str(ready)!r}, 'w')", "broken": "1/0"}
    stages = run(
        stage("fails"), stage("passes", needs="model"), stage("lacks", needs="broken"), jobs=jobs
    ).stages
    assert ready.exists() and stages["passes"].status == "passed"
    assert stages["lacks"].status == "could not run"
    assert stages["lacks"].why == "broken failed: see logs/broken.log"
    log = (tmp_path / "work" / "logs" / "broken.log").read_text()
    assert "ZeroDivisionError" in log


def test_a_job_that_is_not_ready_in_time_is_ended(run: Run) -> None:
    jobs = {"model": "import time; time.sleep(1000)"}
    begin_s = time.monotonic()
    stages = run(
        stage("passes", least_s=2.0, needs="model"), stage("lacks"), budget_s=5.0, jobs=jobs
    ).stages
    assert stages["passes"].why == "model was not ready in time"
    assert stages["lacks"].status == "could not run"
    assert time.monotonic() - begin_s < 500


def test_jobs_of_stages_that_passed_are_not_begun(run: Run) -> None:
    earlier = Results(rehearsal=False, budget_s=1.0)
    earlier.stages["passes"] = StageResult(status="passed")
    # A job without a command could not be begun.
    assert run(stage("passes", needs="model"), earlier=earlier).stages["passes"].resumed


def test_a_row_that_was_cut_off_is_none(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text(json.dumps({"fact": 1}) + '\n{"fact": ')
    assert read_rows(file) == [{"fact": 1}]
    assert read_rows(tmp_path / "none") == []


def test_a_group_that_is_gone_is_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    process.wait()
    assert end_group(process, abort=True)
