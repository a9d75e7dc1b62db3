"""connect/weights: a checkpoint from one publisher to several peers.

`time_over_one_copy`, `publisher_bytes_ratio`, `peak_above_size_mib`: the publisher and each peer
are machines at a switch, with one link each. `one_host`: five processes; the limit is what as many
threads as there are cores copy, past the caches, between pages that are there. Peers land in memory
that is there, too, and compare every piece with its checksum. `one_host_beside`: the same in turns
with checkpoint-engine's two ways, which compare nothing (`peer_checkpoint_engine.py`).
`static_over_sprayed`: four unequal links between two machines; an equal part of the tensors by each
link against one pull over all of them. What the talk shows of its engine beside its static one, for
other models on other machines: Qwen3-235B 28.56 s to 18.97 s (1.51), GLM-4.5-Air 14.75 s to 11.26 s
(1.31).
"""

import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from benchmarks.case import CaseError, Run
from benchmarks.connect.weights_side import NAME, random_tensors
from benchmarks.transfer.drivers import limits, started
from benchmarks.transfer.told import Told, module
from benchmarks.triples import Comparison, Limit, Samples
from tests.support.netns import ShapedLinks
from tests.support.star import ShapedStar, star_problem

PORT, SINGLE_PORT = 7400, 7500
COPY_BYTES = 16 << 20
PEER = "checkpoint-engine"
TALK = {
    "the talk, Qwen3-235B": 28.56 / 18.97,
    "the talk, GLM-4.5-Air": 14.75 / 11.26,
}


class Process:
    """A process of the case, which ends with `stack`."""

    def __init__(self, stack: ExitStack, listen: str, *start: Any) -> None:
        command = module("benchmarks.connect.weights_side", listen)
        self._told = stack.enter_context(Told(command, *start))
        self.address: str = json.loads(self._told.first)["address"]

    def tell(self, do: str, **arguments: Any) -> dict[str, Any]:
        """What it answers."""
        answer: dict[str, Any] = json.loads(self._told.tell(json.dumps({"do": do, **arguments})))
        if "error" in answer:
            raise CaseError(f"connect/weights: {do} failed: {answer['error']}")
        return answer

    def kill(self) -> None:
        """End it; whoever waits for its answer gets a CaseError."""
        self._told.process.kill()


def measure(run: Run) -> Generator[Comparison | Samples, None, None]:
    """Links of one rate, one host, unequal links."""
    if problem := star_problem():
        raise CaseError(f"connect/weights needs network namespaces at a bridge: {problem}")
    for params in run.params("time_over_one_copy"):
        yield from shaped(run, params)
    for params in run.params("one_host"):
        yield from one_host(run, params)
    yield from uneven(run)


def shaped(run: Run, params: dict[str, Any]) -> Generator[Samples, None, None]:
    """Everybody pulls at once, over a link each."""
    work, peers = run.workload, params["peers"]
    size = work["size_bytes"]
    times, ratios, peaks = [], [], []
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        save_file(random_tensors(size), Path(directory) / "model.safetensors")
        star = stack.enter_context(ShapedStar(peers + 1, work["mbit"]))
        everyone = [
            Process(stack, f"{star.address(n)}:{PORT}", functools.partial(star.start, n))
            for n in range(peers + 1)
        ]
        publisher, others = everyone[0], everyone[1:]
        for number in range(work["shaped_repeats"]):
            version = str(number)
            publisher.tell("publish", version=version, directory=directory)
            before = star.bytes_sent(0)
            seconds, answers = together(others, version, publisher.address)
            times.append(seconds / (size / (work["mbit"] / 8e-6)))
            ratios.append((star.bytes_sent(0) - before) / size)
            peaks.append(max(answer["peak_bytes"] - size for answer in answers) / (1 << 20))
            for process in others:
                process.tell("release")
    yield Samples(name="time_over_one_copy", params=params, values=times)
    yield Samples(name="publisher_bytes_ratio", params=params, values=ratios)
    yield Samples(name="peak_above_size_mib", params=params, values=peaks)


def one_host(run: Run, params: dict[str, Any]) -> Generator[Comparison | Samples, None, None]:
    """The same in five processes of this machine."""
    size, peers = run.workload["host_bytes"], params["peers"]
    with ExitStack() as stack:
        publisher, *others = (Process(stack, "127.0.0.1:0") for _ in range(peers + 1))
        (address,) = publisher.tell(
            "publish_tensors", version="0", size=size, listens=["127.0.0.1:0"]
        )["addresses"]
        for process in others:
            process.tell("room", size=size)
        copies = stack.enter_context(limits())
        cores = len(os.sched_getaffinity(0))

        def ours() -> float:
            seconds, _ = together(others, "0", address, f"{NAME}0")
            for process in others:
                process.tell("release")
            return peers * size / seconds / 1e9

        def copied() -> float:
            calls = max(1, peers * size // COPY_BYTES // cores)
            seconds, _ = copies.ask("copy", COPY_BYTES, cores, calls)
            return calls * cores * COPY_BYTES / seconds / 1e9

        ours()  # maps what others offer, page by page
        yield Comparison(
            name="one_host",
            params=params,
            ours=ours,
            limit=Limit(name="streaming copies on all cores", measure=copied),
        )
        yield beside(run, params, ours)


def beside(run: Run, params: dict[str, Any], ours: Callable[[], float]) -> Samples:
    """In turns with checkpoint-engine, few times: it takes seconds."""
    size, peers = run.workload["host_bytes"], params["peers"]
    own: list[float] = []
    theirs: dict[str, list[float]] = {}
    with started(run.peers, PEER, PEER, "benchmarks.connect.peer_checkpoint_engine") as found:
        ways = {
            f"{label}, {way}": functools.partial(driver.ask, way, size, peers, 1)
            for label, driver in found.items()
            for way in ("broadcast", "p2p")
        }
        for update in ways.values():
            update()  # makes processes and connections, and sees that the bytes come
        for _ in range(run.workload["beside_repeats"]):
            own.append(ours())
            for label, update in ways.items():
                theirs.setdefault(label, []).append(peers * size / update()[0] / 1e9)
    return Samples(name="one_host_beside", params=params, values=own, peers=theirs)


def uneven(run: Run) -> Generator[Samples, None, None]:
    """An equal part by each link against pieces that go where they are expected first."""
    work = run.workload
    ratios = []
    with ExitStack() as stack:
        links = stack.enter_context(ShapedLinks(work["mbits"]))
        source = Process(stack, f"0.0.0.0:{PORT}", functools.partial(links.start, "right"))
        target = Process(stack, "0.0.0.0:0", functools.partial(links.start, "left"))
        size = work["uneven_bytes"]
        source.tell("publish_tensors", version="0", size=size, listens=[f"0.0.0.0:{PORT + 1}"])
        singles = [f"{link.right}:{SINGLE_PORT}" for link in links]
        parts = Process(stack, f"0.0.0.0:{PORT + 2}", functools.partial(links.start, "right"))
        parts.tell("publish_tensors", version="0", size=size, listens=singles)
        for _ in range(run.repeats):
            apart = target.tell("pull_apart", version="0", publishers=singles)["seconds"]
            sprayed = target.tell(
                "pull", version="0", publishers=[f"{links[0].right}:{PORT + 1}"], name=f"{NAME}0"
            )["seconds"]
            target.tell("release")
            ratios.append(apart / sprayed)
    peers = {label: [ratio] * len(ratios) for label, ratio in TALK.items()}
    yield Samples(name="static_over_sprayed", values=ratios, peers=peers)


def together(
    processes: Sequence[Process], version: str, address: str, name: str = NAME
) -> tuple[float, list[dict[str, Any]]]:
    """All pull at once: seconds until the last one has all, and their answers."""
    with ThreadPoolExecutor(len(processes)) as pool:
        began_s = time.monotonic()
        answers = list(
            pool.map(
                lambda one: one.tell("pull", version=version, publishers=[address], name=name),
                processes,
            )
        )
        return time.monotonic() - began_s, answers
