"""`python -m benchmarks refresh`: run cases again, one after the other, each on a quiet machine.

A case whose needs are not all here keeps its record, and the reason is said. Each case runs in a
process of its own, so that one that fails or hangs does not stop the next.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.case import CaseError, case_names, load_declaration
from benchmarks.compare import changed_lines
from benchmarks.history import NoHistoryError, read_history
from benchmarks.kinds import kind_of
from benchmarks.needs import missing
from benchmarks.record import read_record
from benchmarks.stale import record_ages

QUIET_LOAD = 0.5
QUIET_WAIT_S = 300.0
CASE_LIMIT_S = 2 * 3600.0


def refresh(cases: Sequence[str], stale: int | None, peers: Path | None) -> int:
    """Run cases again and say what became of them.

    Args:
        cases: by name; none for all that have a record of any kind of processor.
        stale: only those of which this kind of processor has no record, or one of so many commits.
        peers: `--peers`.

    Returns:
        The exit status: 1 if a case failed.

    Raises:
        CaseError: an unknown case, or commits cannot be counted here and `stale` asks for it.
    """
    chosen = _chosen(cases, stale)
    reasons = {case: missing(_needs(case), peers) for case in chosen}
    for case, reason in reasons.items():
        if reason:
            print(f"cannot run here: {case} needs {'; '.join(reason)}")
    runnable = [case for case in chosen if not reasons[case]]
    before = {case: read_record(case, _kind_here(case)) for case in runnable}
    failed = []
    for number, case in enumerate(runnable, start=1):
        print(f"\n== {case} ({number} of {len(runnable)})", flush=True)
        wait_until_quiet()
        if (problem := _run(case, peers)) is not None:
            print(f"FAILED: {case}: {problem}")
            failed.append(case)
    print("\n== summary")
    for case in runnable:
        if case in failed:
            print(f"{case}: FAILED, its record is as it was")
        else:
            print_changes(case, before[case], read_record(case, _kind_here(case)))
    print(
        f"{len(runnable) - len(failed)} measured, {len(failed)} failed, "
        f"{len(chosen) - len(runnable)} cannot run here"
    )
    if len(runnable) > len(failed):
        print("`python -m benchmarks table` writes docs/benchmarks.md again")
    return 1 if failed else 0


def wait_until_quiet(
    load: Callable[[], float] = lambda: os.getloadavg()[0],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the load of the last minute is low, for `QUIET_WAIT_S` at most; say what it is."""
    waited, found = 0.0, load()
    while found > QUIET_LOAD and waited < QUIET_WAIT_S:
        if not waited:
            print(f"load {found:.2f}: waiting until it is {QUIET_LOAD}", flush=True)
        sleep(5.0)
        waited += 5.0
        found = load()
    late = f", after {waited:.0f} s of waiting: it runs all the same" if found > QUIET_LOAD else ""
    print(f"load {found:.2f}{late}", flush=True)


def print_changes(case: str, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
    """Print what a new record has that its predecessor had not, a line for each measurement."""
    assert new is not None, f"{case} ran and left no record"
    name = f"{case}/{new['kind']}"
    if old is None:
        print(f"{name}: the first record of this kind of processor")
        return
    lines = changed_lines(old, new)
    print(f"{name}: {len(lines)} changes beside {old['date'][:10]}")
    for line in lines:
        print(f"  {line}")


def _chosen(cases: Sequence[str], stale: int | None) -> list[str]:
    """The cases to run: first those with the oldest records here, then those without one."""
    if unknown := sorted(set(cases) - set(case_names())):
        raise CaseError(f"no case {', '.join(unknown)}; there are: {', '.join(case_names())}")
    try:
        history = read_history()
    except NoHistoryError as error:
        if stale is not None:
            raise CaseError(f"--stale cannot be counted here: {error}") from error
        history = None
    ages = record_ages(history)
    wanted = cases or dict.fromkeys(one.name.rpartition("/")[0] for one in ages)
    here = {f"{case}/{_kind_here(case)}": case for case in wanted}
    recorded = {here[one.name]: one for one in ages if one.name in here}
    others = [case for case in wanted if case not in recorded]
    if stale is None:
        return [*recorded, *others]
    old = [case for case, one in recorded.items() if one.age and one.age.commits >= stale]
    return old + others


def _needs(case: str) -> tuple[str, ...]:
    return tuple(load_declaration(case).get("needs", ()))


def _kind_here(case: str) -> str:
    """The kind of a record that the case gives here; "" where it needs a GPU and there is none."""
    found = machine.machine()
    on_gpu = "gpu" in _needs(case)
    return "" if on_gpu and "gpus" not in found else kind_of(found, on_gpu=on_gpu)


def _run(case: str, peers: Path | None) -> str | None:
    """Run a case in a process of its own. Why it left no record, or None."""
    command = [sys.executable, "-m", "benchmarks", "run", case]
    if peers is not None:
        command += ["--peers", str(peers)]
    process = subprocess.Popen(command, cwd=machine.ROOT, start_new_session=True)
    try:
        status = process.wait(CASE_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"not done after {CASE_LIMIT_S:.0f} s"
    finally:
        # What it started must not disturb the next case; where this ends by Ctrl-C, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"ended with status {status}" if status else None
