"""All tests that need a GPU, and how far numbers are from what they are compared with."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_day.error_sizes import VARIABLE
from benchmarks.gpu_day.stage import Context

MOST_TEXT = 800
GPU_FILE = Path("/dev/nvidiactl")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Tests that run together.

    Attributes:
        paths: files or folders.
        only_gpu: those with the marker; the others become tests of the GPU where there is one.
        rehearsed: paths of a rehearsal: in the interpreter all of them take many minutes.
        workers: processes, each with a CUDA context.
    """

    name: str
    paths: tuple[str, ...]
    only_gpu: bool
    limit_s: float
    workers: int
    rehearsed: tuple[str, ...] | None = None


GROUPS = (
    Group(
        name="kernels and models",
        paths=("tests/unit/models/gpu",),
        rehearsed=(
            "tests/unit/models/gpu/test_small_steps.py",
            "tests/unit/models/gpu/test_large.py",
        ),
        only_gpu=False,
        limit_s=150,
        workers=10,
    ),
    Group(
        name="engine",
        paths=("tests/integration/engine/test_cuda.py",),
        only_gpu=True,
        limit_s=100,
        workers=6,
    ),
    Group(
        name="the others",
        paths=(
            "tests/integration/engine/test_tensor_parallel.py",
            "tests/integration/store/test_cuda.py",
            "tests/integration/transfer/test_cuda.py",
            "tests/unit/benchmarks/test_gpu_idle.py",
            "tests/unit/tune/test_devices.py",
        ),
        only_gpu=True,
        limit_s=120,
        workers=4,
    ),
)
"""Those that have had the most to say come first."""


def run(context: Context) -> None:
    """Group after group; a failing test fails the stage in the end."""
    if not context.rehearsal:
        # tests/conftest.py goes by it: without it kernels would be interpreted, and pass.
        context.check(f"kernels are compiled: {GPU_FILE} is there", GPU_FILE.exists())
    for group in GROUPS:
        context.need(15, group.name)
        report = context.work / f"{group.name.replace(' ', '-')}.xml"
        errors = report.with_suffix(".errors")
        for file in (report, errors):
            file.unlink(missing_ok=True)
        limit_s = min(group.limit_s, context.seconds_left() - 5)
        try:
            status = subprocess.run(
                command(group, report, rehearsal=context.rehearsal),
                check=False,
                timeout=limit_s,
                env={**os.environ, VARIABLE: str(errors)},
            ).returncode
        except subprocess.TimeoutExpired:
            context.check(group.name, False, f"not over after {limit_s:.0f} s")
        else:
            # 5: none was collected, which a list of paths that is out of date would do.
            context.check(f"pytest of {group.name}", status in (0, 1), f"status {status}")
        tell(context, group.name, report, errors)


def command(group: Group, report: Path, *, rehearsal: bool) -> list[str]:
    """Warnings of the machine's releases of PyTorch and others fail no test."""
    paths = group.rehearsed if rehearsal and group.rehearsed else group.paths
    # Of a rehearsal one group shows that workers run; where all is skipped they only cost.
    workers = (0 if group.only_gpu else 1) if rehearsal else group.workers
    return [
        sys.executable, "-m", "pytest", "-q", "--no-header", "--full", "-W", "default",
        "-p", "no:cacheprovider", "-p", "benchmarks.gpu_day.error_sizes",
        "--timeout", "90", "-o", "timeout_method=thread", "--durations=5",
        "-n", str(workers), f"--junitxml={report}",
        *(["-m", "gpu or multi_gpu"] if group.only_gpu else []), *paths,
    ]  # fmt: skip


def tell(context: Context, name: str, report: Path, errors: Path) -> None:
    """What the tests said."""
    if not report.exists():
        return
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    reasons: dict[str, int] = {}
    for test, outcome, message in outcomes(report):
        counts[outcome] += 1
        if outcome == "failed":
            context.check(test, False, message)
        elif outcome == "skipped":
            reasons[message] = reasons.get(message, 0) + 1
    context.fact(f"tests: {name}", counts)
    for reason, count in reasons.items():
        context.left_out(f"{count} tests of {name}", reason)
    context.fact(f"errors: {name}", largest_errors(errors))


def outcomes(report: Path) -> Iterator[tuple[str, str, str]]:
    """Name, outcome and message of each test in a JUnit file."""
    for test in ElementTree.parse(report).iter("testcase"):
        name = f"{test.get('classname')}::{test.get('name')}"
        bad = [one for tag in ("failure", "error") for one in test.findall(tag)]
        skipped = test.find("skipped")
        if bad:
            yield name, "failed", ((bad[0].get("message") or "") + (bad[0].text or ""))[:MOST_TEXT]
        elif skipped is not None:
            yield name, "skipped", (skipped.get("message") or "")[:MOST_TEXT]
        else:
            yield name, "passed", ""


def largest_errors(file: Path) -> dict[str, dict[str, float]]:
    """By test: see `error_sizes`."""
    if not file.exists():
        return {}
    lines = (json.loads(line) for line in file.read_text().splitlines())
    return {line.pop("test"): line for line in lines}
