"""Stages of `./tools/check`: their order, their limits, and what is told of a failure and when."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.checks.runner import Outcome, run_stages
from tools.checks.stages import STAGES, Stage


class Check:
    """Runs stages that are lines of shell, and keeps what was told."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.told: list[str] = []

    def __call__(
        self, *stages: tuple[Stage, str], together: int = 2, limit_s: float = 60
    ) -> dict[str, Outcome]:
        scripts = {stage.name: script for stage, script in stages}
        outcomes = run_stages(
            [stage for stage, _ in stages],
            lambda stage: ["bash", "-c", scripts[stage.name]],
            self.logs,
            together,
            dict.fromkeys(scripts, limit_s),
            self.told.append,
        )
        return {outcome.stage.name: outcome for outcome in outcomes}


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return Check(tmp_path)


def named(name: str, *after: str) -> Stage:
    return Stage(name=name, proves="something", after=after)


def test_what_waits_for_a_stage_runs_after_it(check: Check) -> None:
    order = check.logs / "order"
    outcomes = check(
        (named("second", "first"), f"echo second >>{order}"),
        (named("first"), f"sleep 0.2; echo first >>{order}"),
    )
    assert order.read_text() == "first\nsecond\n"
    assert all(outcome.passed for outcome in outcomes.values())


def test_two_run_at_a_time_and_no_third(check: Check) -> None:
    """Each of two waits for the other; the third finds that one of them is over."""
    meet = "touch {0}; until [[ -e {1} ]]; do sleep 0.05; done; touch {0}.over"
    a, b = check.logs / "a", check.logs / "b"
    outcomes = check(
        (named("a"), meet.format(a, b)),
        (named("b"), meet.format(b, a)),
        (named("c"), f"[[ -e {a}.over || -e {b}.over ]]"),
        limit_s=120,
    )
    assert [outcome.result for outcome in outcomes.values()] == ["ok"] * 3


def test_a_failure_stops_only_what_waits_for_it(check: Check) -> None:
    outcomes = check(
        (named("broken"), "exit 3"),
        (named("waits", "broken"), "true"),
        (named("waits-too", "waits"), "true"),
        (named("other"), "true"),
    )
    assert {name: outcome.result for name, outcome in outcomes.items()} == {
        "broken": "FAILED (exit 3)",
        "waits": "not run",
        "waits-too": "not run",
        "other": "ok",
    }


def test_what_is_waited_for_may_be_left_out(check: Check) -> None:
    assert check((named("alone", "not chosen"), "true"))["alone"].passed


def test_a_failure_is_told_when_it_happens_and_once(check: Check) -> None:
    go_on = check.logs / "go on"
    told_at = list[bool]()

    class Watch(list[str]):
        def append(self, line: str) -> None:
            if "test_x" in line:
                told_at.append(go_on.exists())
                go_on.touch()
            super().append(line)

    check.told = Watch()
    line = "FAILED tests/test_x.py::test_x (call)"
    wait = f"while [[ ! -e '{go_on}' ]]; do sleep 0.05; done"
    outcomes = check((named("unit"), f"echo '{line}'; {wait}; echo '{line}'; exit 1"))
    assert outcomes["unit"].result == "FAILED (exit 1)"
    assert told_at == [False], "the stage went on only after its failure had been told"


@pytest.mark.parametrize(
    "line",
    [
        "FAILED tests/a.py::test_b (call)",
        "ERROR tests/a.py - ImportError",
        "E   assert 1 == 2",
        "12/80 Test #12: wire_test ...***Failed 0.1 sec",
        "native/x.cpp:3:1: error: expected ';'",
        "==12==ERROR: AddressSanitizer: heap-use-after-free",
        "WARNING: ThreadSanitizer: data race (pid=1)",
        "x.cpp:5:3: runtime error: signed integer overflow",
    ],
)
def test_lines_that_say_what_failed(check: Check, line: str) -> None:
    check((named("unit"), f'echo "{line}"'))
    assert f"unit: {line}" in check.told


def test_what_is_written_just_before_the_end_is_told(check: Check) -> None:
    """Even where the stage ends while lines of another one are told."""
    go_on, over = check.logs / "go on", check.logs / "over"

    class Slow(list[str]):
        def append(self, line: str) -> None:
            if line == "chatty: FAILED tests/a.py":
                go_on.touch()
                wait_for(over.exists)
                time.sleep(0.3)  # until its process has exited
            super().append(line)

    check.told = Slow()
    wait_for_it = "while [[ ! -e '{}' ]]; do sleep 0.05; done"
    last_words = f"echo 'FAILED tests/b.py'; echo '== 1 failed in 1.0s'; touch '{over}'; exit 1"
    outcomes = check(
        (named("fails"), f"echo began; {wait_for_it.format(go_on)}; {last_words}"),
        (named("chatty"), f"sleep 0.3; echo 'FAILED tests/a.py'; {wait_for_it.format(over)}"),
    )
    assert "fails: FAILED tests/b.py" in check.told
    assert outcomes["fails"].closing == ["== 1 failed in 1.0s"]


@pytest.mark.parametrize(
    "end, result",
    [
        ("kill -SEGV $$", "FAILED (SIGSEGV)"),
        ("bash -c 'kill -ABRT $$' || exit $?", "FAILED (SIGABRT)"),
        ("exit 7", "FAILED (exit 7)"),
    ],
)
def test_a_stage_that_dies_without_a_word(check: Check, end: str, result: str) -> None:
    outcomes = check((named("unit"), f"seq 1 100; {end}"))
    assert outcomes["unit"].result == result
    assert "unit: 100" in check.told and "unit: 50" not in check.told


def test_the_whole_output_is_in_the_log(check: Check) -> None:
    check((named("unit"), "echo one; echo two >&2; printf three"))
    assert (check.logs / "stage-unit.log").read_text() == "one\ntwo\nthree"


def test_closing_lines_of_runners_are_kept(check: Check) -> None:
    pytest_line = "===== 12 passed, 1 skipped in 3.21s ====="
    ctest_line = "100% tests passed, 0 tests failed out of 74"
    outcomes = check((named("unit"), f"echo '{pytest_line}'; echo more; echo '{ctest_line}'"))
    assert outcomes["unit"].closing == [pytest_line, ctest_line]


def test_a_stage_that_takes_too_long_is_ended_with_all_its_processes(check: Check) -> None:
    pid = check.logs / "pid"
    script = f"sleep 1000 & echo $! >{pid}; wait"
    outcomes = check((named("hangs"), script), (named("other"), "sleep 0.1"), limit_s=2)
    assert outcomes["hangs"].result == "too long" and outcomes["other"].passed
    assert any("hangs: took more than 2 s" in line for line in check.told)
    assert gone(int(pid.read_text()))


def test_what_a_stage_leaves_running_is_ended_and_not_waited_for(check: Check) -> None:
    pid = check.logs / "pid"
    start = time.monotonic()
    outcomes = check((named("leaves"), f"sleep 1000 & echo $! >{pid}"))
    assert outcomes["leaves"].passed
    assert time.monotonic() - start < 60
    assert gone(int(pid.read_text()))


def test_processor_seconds_of_children_count(check: Check) -> None:
    burn = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.5: pass'"
    used = check((named("burns"), f'bash -c "{burn}"; true'), (named("sleeps"), "sleep 0.3"))
    assert used["burns"].cpu_s >= 0.5 > used["sleeps"].cpu_s


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_stages(tmp_path: Path, number: signal.Signals) -> None:
    program = (
        "import pathlib, signal, sys\n"
        "from tools.checks.__main__ import _stop\n"
        "from tools.checks.runner import run_stages\n"
        "from tools.checks.stages import Stage\n"
        "signal.signal(signal.SIGTERM, _stop)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "script = 'echo $$ >pid.new; mv pid.new pid; sleep 1000'\n"
        "run_stages([Stage(name='s', proves='')], lambda s: ['bash', '-c', script],"
        " pathlib.Path(), 1, {'s': 1000.0})\n"
    )
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}
    )
    pid = tmp_path / "pid"
    wait_for(pid.exists)
    process.send_signal(number)
    assert process.wait(60) != 0
    assert gone(int(pid.read_text()))


def test_stages_wait_for_stages_that_are_named_before_or_after_without_a_circle() -> None:
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    done = set[str]()
    while len(done) < len(STAGES):
        ready = {stage.name for stage in STAGES if done.issuperset(stage.after)} - done
        assert ready, f"these wait for each other or for what is not there: {set(names) - done}"
        done |= ready


def gone(pid: int) -> bool:
    """Whether a process ends soon; one that nobody has waited for yet is gone, too."""

    def ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_for(ended)
    return True


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.02)
