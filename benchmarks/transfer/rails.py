"""transfer/rails: four unequal links between two engines, each in a network namespace.

`sum_of_links`: payload of one large read over the sum of the links' rates; headers take 3.3 %.
`p99_ratio`: 64 KiB slices that arrive at random at 45 % of that sum, where the slowest link is all
but full in turn: over the links in turn, each with an engine of its own at the target, over ours,
with the same arrivals. A link that rested sends two packets of 64 KiB at once: with much more there
is hardly ever a queue before it. `stall_ms`: the longest time without any completed read around a
cut. `reuse_after_s`: from a link's return until it has carried 256 KiB again. Links are cut in
random order, half of them silently: then nobody is told, packets just stay away.
"""

import functools
import json
import random
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

from benchmarks.case import CaseError, Run
from benchmarks.transfer.rails_side import SLICE_BYTES
from benchmarks.transfer.told import Told, module
from benchmarks.triples import Comparison, Limit, Samples
from tests.support.netns import Link, ShapedLinks, Side, netns_problem

USED_BYTES = 256 << 10
BURST_BYTES = 128 << 10


class Ends:
    """Both processes, which end with `stack`."""

    def __init__(self, stack: ExitStack, links: ShapedLinks) -> None:
        def start(side: Side, role: str) -> Told:
            addresses = [link.right for link in links]
            command = module("benchmarks.transfer.rails_side", role, *addresses)
            return stack.enter_context(Told(command, functools.partial(links.start, side)))

        start("right", "target")
        self._initiator = start("left", "initiator")

    def tell(self, do: str, **arguments: Any) -> dict[str, Any]:
        """What the initiator answers."""
        answer: dict[str, Any] = json.loads(
            self._initiator.tell(json.dumps({"do": do, **arguments}))
        )
        if "error" in answer:
            raise CaseError(f"transfer/rails: {do} failed: {answer['error']}")
        return answer


def measure(run: Run) -> Generator[Comparison | Samples, None, None]:
    """Rates and latencies over whole links, then cuts."""
    if problem := netns_problem():
        raise CaseError(f"transfer/rails needs network namespaces with shaped links: {problem}")
    workload = run.workload
    with ExitStack() as stack:
        links = stack.enter_context(ShapedLinks(workload["mbits"], burst_bytes=BURST_BYTES))
        ends = Ends(stack, links)
        sum_bytes = sum(workload["mbits"]) / 8e-6
        size = workload["bulk_bytes"]
        yield Comparison(
            name="sum_of_links",
            ours=lambda: size / ends.tell("bulk", size=size)["seconds"] / sum_bytes,
            limit=Limit(name="link rates", measure=1.0),
        )
        seeds = iter(range(run.seeds[0], 1 << 30))
        rate = workload["load"] * sum_bytes / SLICE_BYTES

        def p99_ratio() -> float:
            about = {"rate": rate, "seconds": workload["load_s"], "seed": next(seeds)}
            in_turn = ends.tell("round_robin", **about)["p99_s"]
            return float(in_turn / ends.tell("slices", **about)["p99_s"])

        yield Comparison(name="p99_ratio", ours=p99_ratio, seeds=run.seeds)
        yield from cuts(run, links, ends)


def cuts(run: Run, links: ShapedLinks, ends: Ends) -> Generator[Samples, None, None]:
    """Cut and restore links in random order under a steady load."""
    drawn = random.Random(run.seeds[0])
    stalls_ms, reuses_s = [], []
    for number in range(run.repeats):
        link, silently = drawn.choice(list(links)), number % 2 == 1
        about: dict[str, float] = {}
        fault = threading.Thread(target=cut_and_restore, args=(link, silently, about))
        fault.start()
        steady = ends.tell("steady", seconds=run.workload["steady_s"])
        fault.join()
        if steady["wrong_bytes"]:
            raise CaseError(f"transfer/rails: {steady['wrong_bytes']} wrong bytes, cut {number}")
        ended = sorted(steady["ended"])
        around = [
            later - earlier
            for earlier, later in zip(ended, ended[1:], strict=False)
            if later > about["cut"] and earlier < about["restored"]
        ]
        stalls_ms.append(max(around) * 1e3)
        reuses_s.append(about["used"] - about["restored"])
    yield Samples(name="stall_ms", values=stalls_ms, seeds=run.seeds)
    yield Samples(name="reuse_after_s", values=reuses_s, seeds=run.seeds)


def cut_and_restore(link: Link, silently: bool, about: dict[str, float]) -> None:
    """Half a second without the link; leaves the times of cut, return and first use."""
    time.sleep(0.5)
    about["cut"] = time.monotonic()
    link.cut(silently=silently)
    time.sleep(0.5)
    before = link.bytes_sent("right")
    about["restored"] = time.monotonic()
    link.restore()
    about["used"] = about["restored"] + 60.0  # if it never is
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if link.bytes_sent("right") - before > USED_BYTES:
            about["used"] = time.monotonic()
            return
        time.sleep(0.005)
