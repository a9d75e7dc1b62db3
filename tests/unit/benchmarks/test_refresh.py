"""Which cases are run again, why others are not, and what is said of the new records."""

import os
import select
from pathlib import Path
from typing import Any

import pytest

from benchmarks import refresh as module
from benchmarks.case import CaseError
from benchmarks.compare import changed_lines
from benchmarks.history import Age, History, NoHistoryError
from benchmarks.refresh import QUIET_WAIT_S, refresh, wait_until_quiet
from benchmarks.stale import RecordAge


def entry(name: str, value: float | None, **fields: Any) -> dict[str, Any]:
    return {
        "name": name, "params": {"n": 1}, "unit": "s", "better": "lower", "value": value,
        "met": None,
    } | fields  # fmt: skip


def record(*entries: dict[str, Any], kind: str = "avx2") -> dict[str, Any]:
    return {
        "case": "selftest/copy",
        "kind": kind,
        "date": "2026-11-20T12:00:00+00:00",
        "measurements": list(entries),
    }


def limited(share: float, **fields: Any) -> dict[str, Any]:
    return entry("x", 1.0, limit={"name": "copy", "value": 2.0}, of_limit=share, **fields)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (entry("x", 1.0), entry("x", 1.05), []),
        (entry("x", 1.0), entry("x", 1.2), ["worse   x{n=1}: value 1 -> 1.2 s"]),
        (entry("x", 1.2), entry("x", 1.0), ["better  x{n=1}: value 1.2 -> 1 s"]),
        (
            entry("x", 1.0, better="higher"),
            entry("x", 2.0, better="higher"),
            ["better  x{n=1}: value 1 -> 2 s"],
        ),
        # Twice as slow on a machine that is twice as slow.
        (limited(0.8), limited(0.8) | {"value": 2.0}, []),
        (limited(0.8), limited(0.7), ["worse   x{n=1}: of copy 0.8 -> 0.7"]),
        (
            entry("x", 1.0, of_peer={"p 1": 2.0, "q 1": 3.0}),
            entry("x", 9.0, of_peer={"p 1": 2.5, "q 1": 2.4, "r 1": 1.0}),
            ["worse   x{n=1}: of q 1 3 -> 2.4"],
        ),
        # Another version of the peer is another peer.
        (
            entry("x", 1.0, of_peer={"p 1": 2.0}),
            entry("x", 1.0, of_peer={"p 2": 9.0}),
            [],
        ),
        (
            limited(0.91, met=True),
            limited(0.89, met=False),
            ["target  x{n=1}: of copy 0.91 -> 0.89, target met -> missed"],
        ),
        (entry("x", 1.0), entry("x", None), ["worse   x{n=1}: no result"]),
        (entry("x", None), entry("x", 1.0), ["better  x{n=1}: 1 s"]),
        (entry("x", None), entry("x", None), []),
        (entry("x", 0.0), entry("x", 0.0), []),
        (entry("x", 0.0), entry("x", 0.5), ["worse   x{n=1}: value 0 -> 0.5 s"]),
        (entry("x", 1.0), entry("y", 1.0), ["new     y{n=1}: 1 s", "gone    x{n=1}"]),
    ],
)
def test_what_changed(old: dict[str, Any], new: dict[str, Any], lines: list[str]) -> None:
    assert changed_lines(record(old), record(new)) == lines


@pytest.mark.parametrize(
    ("loads", "waits", "said"),
    [
        ([0.3], 0, ["load 0.30"]),
        ([2.0, 1.0, 0.4], 2, ["load 2.00: waiting until it is 0.5", "load 0.40"]),
    ],
)
def test_it_waits_until_the_load_has_fallen(
    capsys: pytest.CaptureFixture[str], loads: list[float], waits: int, said: list[str]
) -> None:
    slept: list[float] = []
    values = iter(loads)
    wait_until_quiet(load=lambda: next(values), sleep=slept.append)
    assert len(slept) == waits
    assert capsys.readouterr().out.splitlines() == said


def test_it_does_not_wait_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    slept: list[float] = []
    wait_until_quiet(load=lambda: 3.0, sleep=slept.append)
    assert sum(slept) == QUIET_WAIT_S
    assert "load 3.00, after 300 s of waiting: it runs all the same" in capsys.readouterr().out


class World:
    """A refresh whose cases are run by nobody: what it would have run, and what there is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[str] = []
        self.missing: dict[str, str] = {}
        self.failing: set[str] = set()
        self.records = {"area/old": [record(entry("x", 2.0)), record(entry("x", 1.0))]}
        self.ages = [
            RecordAge(name="area/old/avx2", date="2026-11-20", age=Age(commits=60)),
            RecordAge(name="area/other/amx", date="2026-11-20", age=Age(commits=50)),
            RecordAge(name="area/young/avx2", date="2026-11-28", age=Age(commits=4)),
        ]
        names = ["area/new", "area/old", "area/other", "area/young"]
        monkeypatch.setattr(module, "case_names", lambda: names)
        monkeypatch.setattr(module, "_kind_here", lambda case: "avx2")
        monkeypatch.setattr(module, "_needs", lambda case: (case,))
        monkeypatch.setattr(module, "missing", lambda needs, peers: self._missing(*needs))
        monkeypatch.setattr(module, "read_history", lambda: History([]))
        monkeypatch.setattr(module, "record_ages", lambda history: self.ages)
        monkeypatch.setattr(module, "read_record", lambda case, kind: self._record(case))
        monkeypatch.setattr(module, "wait_until_quiet", lambda: None)
        monkeypatch.setattr(module, "_run", self._run)

    def _missing(self, case: str) -> list[str]:
        return [self.missing[case]] if case in self.missing else []

    def _record(self, case: str) -> dict[str, Any] | None:
        if case not in self.records:
            return record(entry("x", 1.0)) if case in self.ran else None
        return self.records[case][case in self.ran]

    def _run(self, case: str, peers: Path | None) -> str | None:
        self.ran.append(case)
        return "ended with status 1" if case in self.failing else None


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize(
    ("cases", "stale", "ran"),
    [
        ([], None, ["area/old", "area/young", "area/other"]),
        # No record of this kind of processor is as old as can be.
        ([], 50, ["area/old", "area/other"]),
        ([], 61, ["area/other"]),
        (["area/new", "area/young"], None, ["area/young", "area/new"]),
        (["area/new", "area/young"], 50, ["area/new"]),
    ],
)
def test_the_oldest_run_first(
    world: World, cases: list[str], stale: int | None, ran: list[str]
) -> None:
    assert refresh(cases, stale, None) == 0
    assert world.ran == ran


def test_what_cannot_run_here_is_said_and_keeps_its_record(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.missing["area/old"] = "no CUDA device"
    assert refresh([], None, None) == 0
    assert "area/old" not in world.ran
    printed = capsys.readouterr().out
    assert "cannot run here: area/old needs no CUDA device" in printed
    assert "2 measured, 0 failed, 1 cannot run here" in printed


def test_a_case_that_fails_does_not_stop_the_next(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.failing.add("area/old")
    assert refresh([], None, None) == 1
    assert world.ran == ["area/old", "area/young", "area/other"]
    printed = capsys.readouterr().out
    assert "FAILED: area/old: ended with status 1" in printed
    assert "area/old: FAILED, its record is as it was" in printed


def test_the_summary_says_what_got_better(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    refresh(["area/old", "area/new"], None, None)
    printed = capsys.readouterr().out
    assert "area/old/avx2: 1 changes beside 2026-11-20" in printed
    assert "  better  x{n=1}: value 2 -> 1 s" in printed
    assert "area/new/avx2: the first record of this kind of processor" in printed


def test_unknown_cases_are_refused_by_name(world: World) -> None:
    with pytest.raises(CaseError, match="no case area/else; there are: area/new, area/old"):
        refresh(["area/else"], None, None)


def test_without_history_only_stale_ones_cannot_be_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_history() -> History:
        raise NoHistoryError("this clone is shallow")

    monkeypatch.setattr(module, "read_history", no_history)
    with pytest.raises(CaseError, match="--stale cannot be counted here: this clone is shallow"):
        refresh([], 10, None)
    assert refresh([], None, None) == 0 and len(world.ran) == 3


def test_a_case_runs_in_a_process_of_its_own_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, held = tmp_path / "program", tmp_path / "program.held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    program.write_text('#!/bin/sh\necho "$@" >"$0.told"\nexec 3>"$0.held"\nsleep 600 &\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(program))
    assert module._run("area/case", Path("scripts")) == "ended with status 3"
    assert (tmp_path / "program.told").read_text().split() == [
        "-m", "benchmarks", "run", "area/case", "--peers", "scripts",
    ]  # fmt: skip
    # Readable without a byte in it: whoever held it has ended.
    select.select([reader], [], [], 60)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_case_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(program))
    monkeypatch.setattr(module, "CASE_LIMIT_S", 0.2)
    assert module._run("area/case", None) == "not done after 0 s"
