"""Runs stages within a budget: each a process group with a limit and a log.

A stage that fails or hangs does not stop the next one. Results are written after each, so that
whatever ends this process leaves them. What takes long and needs no GPU runs beside the first
stages. Knows nothing of what stages do.
"""

import contextlib
import datetime
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_day.results import Results, Row, StageResult, Status, sample_key
from benchmarks.gpu_day.run_stage import EXIT
from benchmarks.gpu_day.stage_list import Stage

TO_END_S = 8.0
"""Kept of the budget for ending what runs and packing logs."""
ABORT_S = 3.0
"""From the signal that has Python say where it is, to the one that ends it."""
DIE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run where.

    Attributes:
        command: of a stage; options are added.
        job_command: of a job, by its name.
        environment: of all processes; in a rehearsal `interpreter` is laid over it for stages whose
            kernels run in Triton's interpreter.
        work: logs, rows and models.
        tree: the folder that processes start in.
    """

    stages: Sequence[Stage]
    device: str
    commit: str
    tree: Path
    work: Path
    environment: Mapping[str, str]
    interpreter: Mapping[str, str] = field(default_factory=dict)
    command: Callable[[str], list[str]]
    job_command: Callable[[str], list[str]]

    @property
    def rehearsal(self) -> bool:
        """No GPU."""
        return self.device == "cpu"

    @property
    def logs(self) -> Path:
        """What processes print."""
        return self.work / "logs"


def stage_command(name: str) -> list[str]:
    """The process of a stage."""
    return [sys.executable, "-m", "benchmarks.gpu_day.run_stage", name]


class Runner:
    """One call of `run`.

    Args:
        results: filled, and written to `file` after each stage.
        deadline_s: of the monotonic clock, when all must be over.
        earlier: of a call before: what passed there is not run again, and what a stage of the same
            commit measured before it failed is not measured again.
        saved: called after each stage, with the results written.
    """

    def __init__(
        self,
        plan: Plan,
        results: Results,
        file: Path,
        deadline_s: float,
        earlier: Results | None = None,
        saved: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan, self._results, self._file, self._earlier = plan, results, file, earlier
        self._saved = saved
        self._deadline_s = deadline_s - TO_END_S
        self._jobs: dict[str, subprocess.Popen[bytes]] = {}
        plan.logs.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """All stages, in order; ends all jobs."""
        chosen = [stage for stage in self._plan.stages if not self._passed_before(stage.name)]
        try:
            for name in dict.fromkeys(job for stage in chosen for job in stage.needs):
                self._jobs[name] = self._start(
                    self._plan.job_command(name), self._plan.logs / f"{name}.log", {}
                )
            self._save()
            for stage in chosen:
                self._run(stage)
                self._save()
        finally:
            for process in self._jobs.values():
                end_group(process, abort=False)
            self._save()

    def _passed_before(self, name: str) -> bool:
        before = self._earlier.stages.get(name) if self._earlier else None
        if before is None or before.status != "passed":
            return False
        before.resumed = True
        self._results.stages[name] = before
        print(f"{name}: passed before", flush=True)
        return True

    def _run(self, stage: Stage) -> None:
        begin_s = time.monotonic()
        result = StageResult(status="not begun", commit=self._plan.commit, date=_now())
        self._results.stages[stage.name] = result
        before = self._earlier.stages.get(stage.name) if self._earlier else None
        if before is not None and before.commit == result.commit:
            result.rows = [row for row in before.rows if "samples" in row or "machine" in row]
        cpu_s = _cpu_s()
        try:
            result.status, result.why = self._outcome(stage, result)
        except BaseException as error:  # whoever started this has no more time
            result.status, result.why = "timed out", f"ended from outside: {error!r}"
            raise
        finally:
            result.seconds = round(time.monotonic() - begin_s, 1)
            result.cpu_seconds = round(_cpu_s() - cpu_s, 1)
        why = f": {result.why}" if result.why else ""
        print(f"{stage.name}: {result.status}, {result.seconds:.1f} s{why}", flush=True)

    def _outcome(self, stage: Stage, result: StageResult) -> tuple[Status, str]:
        if problem := self._wait_for_jobs(stage):
            return problem
        own_s = stage.rehearsal_s if self._plan.rehearsal else stage.limit_s
        limit_s = min(own_s, self._deadline_s - time.monotonic())
        if limit_s < min(stage.least_s, own_s):
            return "not begun", f"{max(limit_s, 0):.0f} s of the budget are left"
        rows = self._plan.work / f"{stage.name}.rows"
        rows.unlink(missing_ok=True)
        options = [
            "--rows", str(rows), "--seconds", f"{limit_s:.1f}", "--device", self._plan.device,
            "--work", str(self._plan.work),
        ]  # fmt: skip
        if keys := [sample_key(s["case"], s["name"], s["params"]) for s in _samples(result.rows)]:
            measured = self._plan.work / f"{stage.name}.measured"
            measured.write_text(json.dumps(keys))
            options += ["--measured", str(measured)]
        log = self._plan.logs / f"{stage.name}.log"
        more = self._plan.interpreter if stage.interpreter and self._plan.rehearsal else {}
        process = self._start([*self._plan.command(stage.name), *options], log, more)
        status, gone = None, True
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            gone = end_group(process, abort=True)
        finally:
            end_group(process, abort=False)
            own = read_rows(rows)
            result.rows += [row for row in own if "why" not in row]
        if status is None:
            left = "" if gone else ", and a process of it is still there"
            return "timed out", f"ended after {limit_s:.0f} s{left}{_last(own)}"
        if status in EXIT:
            return EXIT[status], next((row["why"] for row in own if "why" in row), "")
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return "failed", f"the process ended with {how}{_last(own)}"

    def _wait_for_jobs(self, stage: Stage) -> tuple[Status, str] | None:
        """What keeps a stage from being run."""
        for name in stage.needs:
            process = self._jobs[name]
            try:
                status = process.wait(max(0.0, self._deadline_s - stage.least_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                return "not begun", f"{name} was not ready in time"
            if status:
                return "could not run", f"{name} failed: see logs/{name}.log"
        return None

    def _start(
        self, command: list[str], log: Path, more: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        with log.open("wb") as to:
            return subprocess.Popen(
                command,
                cwd=self._plan.tree,
                env={**self._plan.environment, **more},
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _save(self) -> None:
        self._results.save(self._file)
        self._saved()


def end_group(process: "subprocess.Popen[bytes]", *, abort: bool) -> bool:
    """End a process and all that it started. False: it is still there.

    Args:
        abort: first have it print where it is.
    """
    signals = [(signal.SIGKILL, DIE_S)]
    if abort:
        signals.insert(0, (signal.SIGABRT, ABORT_S))
    for number, wait_s in signals:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(wait_s)
    return process.poll() is not None


def read_rows(file: Path) -> list[Row]:
    """The rows that a stage said; a last line that was cut off is none."""
    if not file.exists():
        return []
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _samples(rows: Sequence[Row]) -> list[Row]:
    return [row["samples"] for row in rows if "samples" in row]


def _last(rows: Sequence[Row]) -> str:
    """What a stage said before it was ended."""
    if not rows:
        return ", it had said nothing"
    return f", after {json.dumps(rows[-1])[:200]}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
