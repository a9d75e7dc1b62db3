"""transfer/fairness: two processes on one shaped network card.

`share_error`: how far a process is from its weight's part of what both write, relative to that
part; the worse of the two. `recover_ms`: from the kill of the heavy one until the light one writes
at 90 % of the card's rate.
"""

import functools
import json
import time
from collections.abc import Generator
from contextlib import ExitStack

from benchmarks.case import CaseError, Run
from benchmarks.transfer.told import Told, module
from benchmarks.triples import Comparison, Samples
from tests.support.netns import ShapedLinks, netns_problem

WEIGHTS = {"interactive": 8, "background": 1}
PAYLOAD = 0.96  # of a link's rate
LONGEST_S = 2.0  # that a recovery is watched

Moved = list[tuple[float, int]]


def start_target(stack: ExitStack, links: ShapedLinks) -> str:
    """Its address; it ends with `stack`."""
    command = module("tests.integration.transfer.target", "0.0.0.0:0", "tcp")
    target = stack.enter_context(Told(command, functools.partial(links.start, "right")))
    return f"{links[0].right}:{target.first.rpartition(':')[2]}"


def start_writers(stack: ExitStack, links: ShapedLinks, address: str) -> dict[str, Told]:
    """One of each traffic class, at work until `stack` ends."""
    start = functools.partial(links.start, "left")
    command = module("tests.integration.transfer.sender", address, "write")
    return {name: stack.enter_context(Told([*command, name], start)) for name in WEIGHTS}


def moved_by(writer: Told) -> Moved:
    """What it has moved, and when."""
    moved: Moved = json.loads(writer.tell())
    return moved


def rate(moved: Moved, begin: float, end: float) -> float:
    """Bytes per second."""
    return sum(count for at, count in moved if begin <= at < end) / (end - begin)


def measure(run: Run) -> Generator[Comparison | Samples, None, None]:
    """Both for a while, then one is killed; `repeats` times."""
    if problem := netns_problem():
        raise CaseError(f"transfer/fairness needs network namespaces with shaped links: {problem}")
    about = run.workload
    full = about["mbit"] * 1e6 / 8 * PAYLOAD
    errors, recoveries_ms = [], []
    with ShapedLinks([about["mbit"]]) as links, ExitStack() as stack:
        address = start_target(stack, links)
        for _ in range(run.repeats):
            with ExitStack() as both:
                writers = start_writers(both, links, address)
                time.sleep(about["settle_s"])
                begin = time.monotonic()
                time.sleep(about["measure_s"])
                end = time.monotonic()
                rates = {
                    name: rate(moved_by(writer), begin, end) for name, writer in writers.items()
                }
                wanted = {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
                errors.append(
                    max(abs(rates[one] / sum(rates.values()) / wanted[one] - 1) for one in WEIGHTS)
                )
                killed = time.monotonic()
                writers["interactive"].close()
                time.sleep(LONGEST_S)
                moved = moved_by(writers["background"])
                recoveries_ms.append(recovery(moved, killed, about["window_s"], full) * 1e3)
            time.sleep(0.1)  # their lines in the ledger are stale
    yield Samples(name="share_error", values=errors, seeds=run.seeds)
    yield Samples(name="recover_ms", values=recoveries_ms, seeds=run.seeds)


def recovery(moved: Moved, killed: float, window_s: float, full: float) -> float:
    """Seconds until a window begins that is carried at 90 % of the full rate."""
    steps = int(LONGEST_S / 0.005) - int(window_s / 0.005)
    for step in range(steps):
        begin = killed + 0.005 * step
        if rate(moved, begin, begin + window_s) >= 0.9 * full:
            return begin - killed
    return LONGEST_S
