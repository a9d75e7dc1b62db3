"""Runs stages beside each other, each in a process group with a log and a limit.

A failure is told when it happens, not at the end: lines of a stage that say what failed are printed
at once, with the stage's name before them. Of a stage that fails without such a line (its process
crashed, or was killed) the last lines are printed.
"""

import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.checks.stages import Stage

# Lines that say which test failed and how: pytest, ctest, compilers, sanitizers.
SIGNS_OF_FAILURE = re.compile(
    r"^(FAILED|ERROR|E  ) |\*\*\*(Failed|Timeout|Exception)|"
    r"\((Failed|Timeout|SEGFAULT|ABRT|Subprocess aborted)\)|(^|: )error: |Sanitizer|"
    r": runtime error: "
)
# What pytest and ctest say at the end, kept for the summary.
CLOSING = re.compile(r"^=+ .* in [0-9.]+s|tests passed, \d+ tests? failed")
MAX_SIGNS = 60  # of a stage: a broken build would print thousands
LAST_LINES = 40  # of a stage that failed and did not say why
HEARTBEAT_S = 30.0
ENDING_S = 10.0  # between SIGTERM and SIGKILL


@dataclass
class Outcome:
    """What came of a stage.

    Attributes:
        result: "ok", "FAILED (exit N)" or "FAILED (SIGNAL)", "too long", or "not run" where one
            that it waits for failed.
        seconds: on the clock.
        cpu_s: processor seconds of all its processes that were waited for.
        closing: the last lines of its test runners.
    """

    stage: Stage
    result: str
    seconds: float = 0.0
    cpu_s: float = 0.0
    closing: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether what waits for it may start."""
        return self.result == "ok"


class _Running:
    """A stage's process, and what is read of it."""

    def __init__(self, stage: Stage, command: Sequence[str], log: Path, limit_s: float) -> None:
        self.stage = stage
        self.limit_s = limit_s
        self.start = time.monotonic()
        self.closing: list[str] = []
        self.last_lines = deque[str](maxlen=LAST_LINES)
        self.too_long = False
        self._signs = set[str]()  # pytest says some twice
        self._rest = b""
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.set_blocking(self.output.fileno(), False)

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def read(self, tell: Callable[[str], None]) -> bool:
        """Take what there is of its output; False at its end, and where nothing is there now."""
        try:
            chunk = os.read(self.output.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        self._log.write(chunk)
        self._log.flush()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._look_at(line.decode(errors="replace").rstrip(), tell)
        return bool(chunk)

    def _look_at(self, line: str, tell: Callable[[str], None]) -> None:
        if CLOSING.search(line):
            self.closing.append(line)
        if SIGNS_OF_FAILURE.search(line) and line not in self._signs:
            self._signs.add(line)
            if len(self._signs) <= MAX_SIGNS:
                tell(f"{self.stage.name}: {line[:400]}")
        if line:
            self.last_lines.append(line)

    def end(self, number: int) -> None:
        """Send a signal to all its processes."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def outcome(self, tell: Callable[[str], None]) -> Outcome:
        """Wait for its process, which has closed its output, exited or was killed."""
        try:
            _, status, used = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.end(signal.SIGKILL)  # what it left running
            # It may have written its last lines, why it failed among them, after the last look.
            while self.read(tell):
                pass
        finally:
            self._log.close()
            self.output.close()
        result = "too long" if self.too_long else _result(self.process.returncode)
        if result != "ok" and not self._signs:
            for line in self.last_lines:
                tell(f"{self.stage.name}: {line[:400]}")
        return Outcome(
            self.stage,
            result,
            self.seconds,
            used.ru_utime + used.ru_stime,
            self.closing,
        )


def run_stages(
    stages: Sequence[Stage],
    command: Callable[[Stage], Sequence[str]],
    logs: Path,
    together: int,
    limits_s: Mapping[str, float],
    tell: Callable[[str], None] = print,
) -> list[Outcome]:
    """Run stages in their order, as many at a time as asked for.

    A stage starts when all stages named by its `after` that are among `stages` have passed; where
    one of them failed it is not run. Ctrl-C and SIGTERM end all of them.

    Args:
        stages: what to run; where several could start, the first does.
        command: the command line of a stage.
        logs: folder of the logs, `stage-NAME.log`.
        together: stages at a time.
        limits_s: seconds that each may take, by name.
        tell: prints a line.

    Returns:
        What came of each, in the order in which they ended.
    """
    waiting, running = list(stages), list[_Running]()
    outcomes: dict[str, Outcome] = {}
    names = {stage.name for stage in stages}
    heartbeat = time.monotonic() + HEARTBEAT_S
    try:
        while waiting or running:
            for stage in list(waiting):
                before = [outcomes.get(name) for name in stage.after if name in names]
                if any(one is not None and not one.passed for one in before):
                    waiting.remove(stage)
                    outcomes[stage.name] = Outcome(stage, "not run")
                elif None not in before and len(running) < together:
                    waiting.remove(stage)
                    log = logs / f"stage-{stage.name}.log"
                    running.append(_Running(stage, command(stage), log, limits_s[stage.name]))
            for one in _wait(running, tell):
                running.remove(one)
                outcome = outcomes[one.stage.name] = one.outcome(tell)
                tell(f"== {told(outcome)}")
            if time.monotonic() > heartbeat:
                heartbeat = time.monotonic() + HEARTBEAT_S
                for one in running:
                    line = one.last_lines[-1] if one.last_lines else ""
                    tell(f"   {one.stage.name} {one.seconds:.0f} s: {line[:100]}")
    finally:
        _end_all(running)
    return list(outcomes.values())


def _result(returncode: int) -> str:
    """What a stage's process says by how it ended; shells say 128 + N of a child's signal N."""
    if returncode == 0:
        return "ok"
    number = -returncode if returncode < 0 else returncode - 128
    try:
        return f"FAILED ({signal.Signals(number).name})"
    except ValueError:
        return f"FAILED (exit {returncode})"


def told(outcome: Outcome) -> str:
    """A line of the summary."""
    times = f"{outcome.seconds:6.0f} s {outcome.cpu_s:6.0f} processor s"
    return f"{outcome.stage.name:14}{times}  {outcome.result}"


def _wait(running: Sequence[_Running], tell: Callable[[str], None]) -> list[_Running]:
    """Read output for a second at most; returns those that ended, or that had to be ended."""
    ended = []
    with selectors.DefaultSelector() as selector:
        for one in running:
            selector.register(one.output, selectors.EVENT_READ, one)
        for key, _ in selector.select(timeout=1.0):
            if not key.data.read(tell):
                ended.append(key.data)
    for one in running:
        # A process that it left behind may hold its output open.
        if one not in ended and (one.process.returncode is None) and _has_exited(one):
            ended.append(one)
        elif one not in ended and one.seconds > one.limit_s:
            tell(f"{one.stage.name}: took more than {one.limit_s:.0f} s, and is ended")
            one.too_long = True
            _end_all([one])
            ended.append(one)
    return ended


def _has_exited(one: _Running) -> bool:
    return os.waitid(os.P_PID, one.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_all(running: Sequence[_Running]) -> None:
    for one in running:
        one.end(signal.SIGTERM)
    deadline = time.monotonic() + ENDING_S
    while any(not _has_exited(one) for one in running) and time.monotonic() < deadline:
        time.sleep(0.05)
    for one in running:
        one.end(signal.SIGKILL)
