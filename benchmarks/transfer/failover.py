"""transfer/failover: all paths of a pair's better transport are cut, and come back.

Two reads of 256 KiB are always under way; every byte is compared. `stall_ms`: the longest time
without a completed read from the cut on. `return_after_s`: from the repair until the transport has
carried bytes again. An error, or a wrong byte, is no result.

Of shared memory the Unix connection is shut, of fabric (libfabric's tcp provider) the only link
that its ports share: tcp has another one.
"""

import functools
import json
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack

from benchmarks.case import CaseError, Run
from benchmarks.transfer.told import Start, Told, module
from benchmarks.triples import Comparison, Samples
from tests.support.netns import ShapedLinks, Side, netns_problem

LONGEST_S = 3.0  # that a return is waited for


class Pair:
    """A target, and the process that reads from it: on one host, or at the ends of links.

    Both end with `stack`.
    """

    def __init__(self, stack: ExitStack, transport: str, links: ShapedLinks | None = None) -> None:
        start: dict[Side, Start] = {"left": subprocess.Popen, "right": subprocess.Popen}
        listen = "127.0.0.1:0"
        if links is not None:
            start = {side: functools.partial(links.start, side) for side in start}
            listen = "0.0.0.0:0"
        names = [transport, "tcp"]
        target = module("tests.integration.transfer.target", listen, *names)
        self._target = stack.enter_context(Told(target, start["right"]))
        address = self._target.first
        if links is not None:
            address = f"{links[1].right}:{address.rpartition(':')[2]}"
        reader = module("benchmarks.transfer.failover_side", listen, address, *names)
        self._reader = stack.enter_context(Told(reader, start["left"]))

    def cut_side_channels(self) -> None:
        """Of shared memory."""
        if self._target.tell("cut_side_channels()") != "1":
            raise CaseError("transfer/failover: there was no link of shared memory")

    def reads(self) -> list[tuple[float, int]]:
        """When each read since the last call ended, and what the better transport had moved."""
        told: list[tuple[float, int]] = json.loads(self._reader.tell())
        return told


def measure(run: Run) -> Generator[Comparison | Samples, None, None]:
    """Cut and repair, `repeats` times for each transport."""
    if problem := netns_problem():
        raise CaseError(f"transfer/failover needs network namespaces with shaped links: {problem}")
    with ExitStack() as stack:
        pair = Pair(stack, "shm")
        yield from cuts(run, "shm", pair, pair.cut_side_channels, lambda: None)
    with ExitStack() as stack:
        links = stack.enter_context(ShapedLinks(run.workload["mbits"]))
        keep_from_fabric(links)
        pair = Pair(stack, "fabric", links)

        def repair() -> None:
            time.sleep(run.workload["cut_s"])
            links[0].restore()

        yield from cuts(run, "fabric", pair, links[0].cut, repair)


def keep_from_fabric(links: ShapedLinks) -> None:
    """Fabric joins ports of equal networks: then those of the first link alone."""
    change = "ip addr {} {}/{} dev {}".format
    name, host = links[1].right_name, links[1].right
    links.run("right", f"{change('del', host, 24, name)} && {change('add', host, 25, name)}")


def cuts(
    run: Run, transport: str, pair: Pair, cut: Callable[[], None], repair: Callable[[], None]
) -> Generator[Samples, None, None]:
    """The cuts of one transport."""
    stalls_ms, returns_s = [], []
    for _ in range(run.repeats):
        time.sleep(run.workload["steady_s"])
        pair.reads()
        time.sleep(0.05)
        begin = time.monotonic()
        cut()
        repair()
        repaired = time.monotonic() if transport == "fabric" else begin
        time.sleep(run.workload["steady_s"])
        reads = pair.reads()
        while time.monotonic() < repaired + LONGEST_S and back(reads, repaired) is None:
            time.sleep(0.05)
            reads += pair.reads()
        ends = [at for at, _ in reads]
        gaps = [later - at for at, later in zip(ends, ends[1:], strict=False) if later > begin]
        stalls_ms.append(max(gaps) * 1e3)
        returned = back(reads, repaired)
        returns_s.append(LONGEST_S if returned is None else returned - repaired)
    params = {"transport": transport}
    yield Samples(name="stall_ms", values=stalls_ms, params=params, seeds=run.seeds)
    yield Samples(name="return_after_s", values=returns_s, params=params, seeds=run.seeds)


def back(reads: list[tuple[float, int]], repaired: float) -> float | None:
    """When the transport had moved more than at the repair, of what came after a rest of it."""
    rested = None
    for (_, before), (at, moved) in zip(reads, reads[1:], strict=False):
        if at > repaired and moved == before:
            rested = moved
        if rested is not None and moved > rested:
            return at
    return None
