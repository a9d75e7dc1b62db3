"""One stage, as a process of its own.

    python -m benchmarks.gpu_day.run_stage NAME --rows FILE --seconds N --device cuda:0 --work DIR

The exit status says how it ended (`EXIT`); a row says why.
"""

import argparse
import faulthandler
import importlib
import json
import sys
import traceback
from pathlib import Path

from benchmarks.gpu_day.results import Status
from benchmarks.gpu_day.stage import CannotRunError, Context, OutOfTimeError

EXIT: dict[int, Status] = {0: "passed", 1: "failed", 3: "could not run", 4: "timed out"}
_STACKS_BEFORE_S = 2.0  # before the limit ends the process, it says where it is


def main() -> int:
    """Run a stage; the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--measured", type=Path)
    options = parser.parse_args()
    measured: list[str] = json.loads(options.measured.read_text()) if options.measured else []
    context = Context(
        options.rows, options.seconds, options.device, options.work, frozenset(measured)
    )
    faulthandler.dump_traceback_later(max(1.0, options.seconds - _STACKS_BEFORE_S))
    try:
        importlib.import_module(f"benchmarks.gpu_day.stages.{options.name}").run(context)
    except CannotRunError as error:
        return _end(context, 3, str(error))
    except OutOfTimeError as error:
        return _end(context, 4, str(error))
    except Exception as error:
        traceback.print_exc()
        return _end(context, 1, f"{type(error).__name__}: {error}")
    return _end(context, 1, "a check failed") if context.failed else 0


def _end(context: Context, status: int, why: str) -> int:
    context.say({"why": why[:1000]})
    return status


if __name__ == "__main__":
    sys.exit(main())
