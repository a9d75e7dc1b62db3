"""transfer/same_host and transfer/tcp: single blocks between two processes of one machine.

Ours makes a transfer, submits it and waits, as the peers' fresh forms do. Every side walks through
256 MiB on both ends. With several threads, each has its own part of the memory; rates are sums.
Beside more than one thread nixl is left out: its agent is asked by one.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any

from benchmarks.case import CaseError, Run
from benchmarks.transfer import drivers
from benchmarks.transfer.calls import ARENA_BYTES, Walk, timed
from benchmarks.transfer.drivers import Driver
from benchmarks.transfer.pair import MEMORIES, Pair, transport_problem
from benchmarks.triples import Comparison, Limit, Side
from inlay.transfer import Op

Params = Mapping[str, Any]
Ask = Callable[[str, int, int, int], tuple[float, float]]
LEAST_CALLS = 4


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per direction and point."""
    transport = run.workload["transport"]
    if problem := transport_problem(transport):
        raise CaseError(f"{run.case.name} needs the transport {transport}: {problem}")
    with contextlib.ExitStack() as stack:
        limit = stack.enter_context(drivers.limits())
        mooncake = stack.enter_context(drivers.mooncake(run.peers))
        nixl = stack.enter_context(drivers.nixl(run.peers, run.workload.get("ucx_tls")))
        pair = stack.enter_context(Pair(transport, ARENA_BYTES))
        for memory in MEMORIES:
            pair.check(memory)
        for op in ("read", "write"):
            for params in run.params(op):
                yield compare(run, op, params, pair, limit, mooncake, nixl)


def compare(
    run: Run,
    op: str,
    params: Params,
    pair: Pair,
    limit: Driver,
    mooncake: Mapping[str, Driver],
    nixl: Mapping[str, Driver],
) -> Comparison:
    """The sides of one point; each gives the median time and the rate of one series of calls."""
    block_bytes, threads = params["block_bytes"], params["threads"]
    most = run.workload["max_calls"]
    calls = min(most, max(LEAST_CALLS, run.workload["side_bytes"] // block_bytes // threads))

    def side(ask: Ask, what: str) -> Side:
        def ask_once() -> dict[str, float]:
            total_s, p50_s = ask(what, block_bytes, threads, calls)
            rate_gbs = block_bytes * threads * calls / total_s / 1e9
            return {f"{op}_p50_us": p50_s * 1e6, op: rate_gbs}

        return ask_once

    peers = {label: side(driver.ask, op) for label, driver in mooncake.items()}
    if threads == 1:
        for label, driver in nixl.items():
            for kind in ("fresh", "reposted"):
                peers[f"{label}, {kind}"] = side(driver.ask, f"{op}_{kind}")
    copies = run.workload["transport"] == "shm"
    return Comparison(
        name=(f"{op}_p50_us", op),
        params=params,
        ours=side(ours(pair, params["memory"]), op),
        limit=Limit(
            name="copy memfd to memfd" if copies else "raw request and answer over TCP",
            measure=side(limit.ask, "copy" if copies else op),
        ),
        peers=peers,
    )


def ours(pair: Pair, memory: str) -> Ask:
    """Our engine, asked as the drivers are."""
    walk = Walk()

    def ask(what: str, block_bytes: int, threads: int, calls: int) -> tuple[float, float]:
        op = Op[what.upper()]

        def call(offset: int) -> None:
            pair.move(op, memory, offset, block_bytes)

        return timed(lambda thread: call, walk, block_bytes, threads, calls)

    return ask
