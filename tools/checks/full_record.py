"""The record of a full check: benchmarks/soak/full_check.json."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.checks.runner import Outcome
from tools.checks.stages import Stage

RECORD = "benchmarks/soak/full_check.json"
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|deselected|errors?|xfailed)")
_CTEST = re.compile(r"(\d+) tests? failed out of (\d+)")


def write_full_record(root: Path, outcomes: Sequence[Outcome], seconds: float) -> None:
    """Write what a full check took and counted, by stage, passed or not."""
    # Beside the other records' words for commit, date and machine; it needs no package.
    from benchmarks import machine

    record = {
        "soak": "full_check",
        "commit": machine.commit(),
        "date": machine.now(),
        "machine": machine.machine(),
        "seconds": round(seconds),
        "passed": all(outcome.passed for outcome in outcomes),
        "stages": {
            outcome.stage.name: {
                "result": outcome.result,
                "seconds": round(outcome.seconds),
                "processor_seconds": round(outcome.cpu_s),
                **counts(outcome.closing),
            }
            for outcome in outcomes
        },
    }
    file = root / RECORD
    file.write_text(json.dumps(record, indent=2) + "\n")
    print(f"record: {RECORD}")


def passed_before(root: Path, stages: Sequence[Stage]) -> dict[str, str]:
    """Find the stages of which the recorded full check has seen all that they depend on.

    Returns:
        Name -> commit, for stages with `inputs` that passed there and whose inputs are the same in
        the working tree. Empty where there is no record, or git does not know its commit (a
        shallow clone).
    """
    try:
        record = json.loads((root / RECORD).read_text())
    except FileNotFoundError:
        return {}
    commit = record["commit"]
    return {
        stage.name: commit
        for stage in stages
        if stage.inputs
        and record["stages"].get(stage.name, {}).get("result") == "ok"
        and _unchanged_since(root, commit, stage.inputs)
    }


def _unchanged_since(root: Path, commit: str, paths: Sequence[str]) -> bool:
    git = ["git", "-C", str(root)]
    same = subprocess.run([*git, "diff", "--quiet", commit, "--", *paths], capture_output=True)
    new = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard", "--", *paths], capture_output=True
    )
    return same.returncode == 0 and new.returncode == 0 and not new.stdout


def counts(closing: Sequence[str]) -> dict[str, int]:
    """Tests by outcome, added up over the closing lines of pytest and ctest."""
    found: dict[str, int] = {}
    for line in closing:
        if match := _CTEST.search(line):
            failed, tests = int(match[1]), int(match[2])
            found["passed"] = found.get("passed", 0) + tests - failed
            found["failed"] = found.get("failed", 0) + failed
        else:
            for number, name in _COUNT.findall(line):
                found[name] = found.get(name, 0) + int(number)
    return found
