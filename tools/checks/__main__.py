"""The command line of `./tools/check`."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tools.checks.changed import changed_tests
from tools.checks.full_record import passed_before, write_full_record
from tools.checks.runner import Outcome, run_stages, told
from tools.checks.stages import SET_UP, STAGES, Stage

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "logs"
STAGE_SCRIPT = "tools/stages.sh"


def main() -> None:
    """Run what is asked for; status 0 means that all of it passed."""
    signal.signal(signal.SIGTERM, _stop)
    options = _options()
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        if options.changed:
            _run_tests(changed_tests(ROOT))
        elif paths := [one for one in options.what if one not in _names(STAGES)]:
            if len(paths) < len(options.what):
                sys.exit("error: name stages or paths of tests, not both")
            _run_tests(paths)
        else:
            _run_stages(options.what, options.full)
    except KeyboardInterrupt:
        sys.exit(130)


def _options() -> argparse.Namespace:
    width = max(map(len, _names(STAGES)))
    stages = "\n".join(
        f"  {stage.name:{width}}  {stage.proves}{' (--full)' if stage.full_only else ''}"
        for stage in STAGES
    )
    parser = argparse.ArgumentParser(
        prog="./tools/check",
        description="Set up .venv, then run the stages of the check: all that CI runs, the stages "
        "named, or single tests.",
        epilog=f"stages:\n{stages}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="*", metavar="STAGE|PATH", help="stages, or paths of tests")
    parser.add_argument(
        "--full",
        action="store_true",
        help="also what the gate leaves out: all parametrisations, faults, fresh random seeds; "
        "all stages together write benchmarks/soak/full_check.json",
    )
    parser.add_argument(
        "--changed", action="store_true", help="the tests of what changed since main, nearest first"
    )
    options = parser.parse_args()
    if options.changed and (options.full or options.what):
        parser.error("--changed goes alone")
    for one in options.what:
        if one not in _names(STAGES) and not (ROOT / one.partition("::")[0]).exists():
            parser.error(
                f"{one!r} is neither a path nor a stage; stages are {', '.join(_names(STAGES))}"
            )
    return options


def _names(stages: Sequence[Stage]) -> list[str]:
    return [stage.name for stage in stages]


def _run_stages(names: Sequence[str], full: bool) -> None:
    begin = time.monotonic()
    wanted = [
        stage
        for stage in STAGES
        if stage.name in (*SET_UP, *names) or (not names and (full or not stage.full_only))
    ]
    passed = {} if full or names else passed_before(ROOT, wanted)
    for name, commit in passed.items():
        print(f"== {name}: the full check passed it at {commit[:10]}, and its inputs are the same")
    wanted = [stage for stage in wanted if stage.name not in passed]
    os.environ["CHECK_FULL"] = "yes" if full else ""
    outcomes = run_stages(
        wanted,
        lambda stage: ["bash", STAGE_SCRIPT, stage.name],
        LOGS,
        # One more than processors: tests wait for processes or disks at times, compilers never.
        together=len(os.sched_getaffinity(0)) + 1,
        limits_s={stage.name: stage.full_limit_s if full else stage.limit_s for stage in wanted},
    )
    seconds = time.monotonic() - begin
    _print_summary(outcomes, seconds)
    if full and not names:
        write_full_record(ROOT, outcomes, seconds)
    if failed := [one.stage.name for one in outcomes if not one.passed]:
        sys.exit(f"error: failed: {', '.join(failed)}; whole output is in {LOGS}/stage-NAME.log")


def _print_summary(outcomes: Sequence[Outcome], seconds: float) -> None:
    print("\n== summary")
    for outcome in outcomes:
        print(told(outcome))
    cpu_s = sum(outcome.cpu_s for outcome in outcomes)
    print(f"{'total':14}{seconds:6.0f} s {cpu_s:6.0f} processor s")
    for outcome in outcomes:
        for line in outcome.closing:
            print(line)


def _run_tests(paths: Sequence[str]) -> None:
    """Run tests in this terminal, once the set-up is done."""
    for name in SET_UP:
        subprocess.run(["bash", STAGE_SCRIPT, name], cwd=ROOT, check=True)
    if paths:
        sys.exit(subprocess.run(["bash", STAGE_SCRIPT, "paths", *paths], cwd=ROOT).returncode)
    print("Nothing changed that a test looks at.")


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
