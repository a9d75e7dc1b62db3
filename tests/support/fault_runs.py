"""One fault many times, each with a seed of its own, as the records of soaks have it."""

import random
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager

Outcome = dict[str, float]


def repeat(
    fault: str,
    faulted: AbstractContextManager[Callable[[int], Outcome]],
    runs: int,
    seeds: random.Random,
) -> dict[str, object]:
    """Run a fault until it fails; what is told of it.

    Args:
        faulted: what the fault happens to; gives what runs it once, with a seed.
    """
    told: list[int] = []
    figures: dict[str, list[float]] = {}
    error: str | None = None
    began_s = time.monotonic()
    try:
        with faulted as run:
            for _ in range(runs):
                told.append(seeds.getrandbits(32))
                for figure, value in run(told[-1]).items():
                    figures.setdefault(figure, []).append(value)
    except BaseException as problem:
        error = "".join(traceback.format_exception(problem, limit=-3))
    print(f"{fault}: {len(told)} runs, {error or 'passed'}", flush=True)
    return {
        "fault": fault,
        "passed": error is None,
        "error": error,
        "seconds": round(time.monotonic() - began_s, 1),
        "seeds": told,
        "figures": {
            figure: {
                "median": round(sorted(values)[len(values) // 2], 3),
                "greatest": round(max(values), 3),
            }
            for figure, values in figures.items()
        },
    }
