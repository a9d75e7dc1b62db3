"""transfer/fairness: two processes on one shaped network card.

`share_error`: how far a process is from its weight's part of what both write, relative to that
part; the worse of the two. `recover_ms`: from the kill of the heavy one until the light one writes
at 90 % of the card's rate.
"""

import json
import select
import subprocess
import sys
import time
from collections.abc import Generator

from benchmarks.case import CaseError, Run
from benchmarks.machine import ROOT
from benchmarks.triples import Comparison, Samples
from tests.support.netns import ShapedLinks, Side, netns_problem

ANSWER_S = 30
WEIGHTS = {"interactive": 8, "background": 1}
PAYLOAD = 0.96  # of a link's rate
LONGEST_S = 2.0  # that a recovery is watched

Moved = list[tuple[float, int]]


class Sides:
    """A target, and the processes that write to it."""

    def __init__(self, links: ShapedLinks) -> None:
        self._links = links
        address = self._line(self._start("right", "target", "0.0.0.0:0", "tcp"))
        self._address = f"{links[0].right}:{address.split(':')[1]}"

    def writers(self) -> dict[str, "subprocess.Popen[str]"]:
        """One of each traffic class, at work."""
        found = {}
        for traffic_class in WEIGHTS:
            found[traffic_class] = self._start(
                "left", "sender", self._address, "write", traffic_class
            )
            self._line(found[traffic_class])
        return found

    def moved(self, process: "subprocess.Popen[str]") -> Moved:
        """What it has moved, and when."""
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        moved: Moved = json.loads(self._line(process))
        return moved

    def _start(self, side: Side, module: str, *arguments: str) -> "subprocess.Popen[str]":
        return self._links.start(
            side,
            [sys.executable, "-m", f"tests.integration.transfer.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def _line(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_S)
        line = process.stdout.readline().strip() if ready else ""
        if not line:
            raise CaseError(f"transfer/fairness: no answer from {' '.join(process.args[-4:])}")
        return line


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
    with ShapedLinks([about["mbit"]]) as links:
        sides = Sides(links)
        for _ in range(run.repeats):
            writers = sides.writers()
            time.sleep(about["settle_s"])
            begin = time.monotonic()
            time.sleep(about["measure_s"])
            end = time.monotonic()
            rates = {
                name: rate(sides.moved(writer), begin, end) for name, writer in writers.items()
            }
            wanted = {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
            errors.append(
                max(abs(rates[one] / sum(rates.values()) / wanted[one] - 1) for one in WEIGHTS)
            )
            killed = time.monotonic()
            writers["interactive"].kill()
            time.sleep(LONGEST_S)
            moved = sides.moved(writers["background"])
            recoveries_ms.append(recovery(moved, killed, about["window_s"], full) * 1e3)
            writers["background"].kill()
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
