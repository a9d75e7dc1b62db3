"""store/same_host and store/tcp: one client and values that a process of this machine holds.

Every side makes the same calls: a value, or a batch of them, into memory that is made for it
(`get`), between memory of the caller and the store (`get_into`, `put`), and in place (`view`).
Reads go through few objects, whose places our client knows for 2 s; `get_into_far` reads each only
once, so that the master is asked for it.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.cores import asking_apart
from benchmarks.store.calls import Objects
from benchmarks.store.ours import VALUE_FILL, StoreClient, running_store
from benchmarks.transfer import drivers
from benchmarks.transfer.drivers import Driver
from benchmarks.triples import Comparison, Limit, Side

Params = Mapping[str, Any]
Ask = Callable[[str, int, int, int], tuple[float, float]]
OPS = ("get_into", "get_into_far", "get", "put", "view")
LEAST_CALLS = 3


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per operation and point."""
    transport = run.workload["transport"]
    mode = {"shm": "unix", "tcp": "tcp"}[transport]
    memory_bytes = run.workload["memory_bytes"]
    with contextlib.ExitStack() as stack:
        limit = stack.enter_context(drivers.limits())
        peers = {
            **stack.enter_context(redis(run, mode)),
            **stack.enter_context(mooncake(run, transport)),
        }
        objects, client = stack.enter_context(
            running_store(memory_bytes, None if transport == "shm" else [transport])
        )
        check(client)
        if transport == "tcp":  # within a host it is the asker alone who copies
            stack.enter_context(asking_apart(one.process.pid for one in (limit, *peers.values())))
        for op in OPS:
            for params in run.params(f"{op}_p50_us"):
                yield compare(run, op, params, objects, limit, peers)


def mooncake(run: Run, transport: str) -> contextlib.AbstractContextManager[dict[str, Driver]]:
    """Its store; stopped, it would be given up by its master."""
    return drivers.started(
        run.peers,
        "mooncake",
        "mooncake-transfer-engine-non-cuda",
        "benchmarks.store.peer_mooncake",
        modes={"": [transport]},
        stopped=False,
    )


def redis(run: Run, socket: str) -> contextlib.AbstractContextManager[dict[str, Driver]]:
    """A server of ours, asked over this kind of socket."""
    return drivers.started(
        run.peers, "redis", "redis", "benchmarks.store.peer_redis", modes={"": [socket]}
    )


def check(client: StoreClient) -> None:
    """See that bytes come as they went."""
    value = np.arange(1 << 20, dtype=np.uint32).view(np.uint8)
    client.store.put("check", value)
    found = np.zeros_like(value)
    client.store.get_into("check", found)
    assert (found == value).all()
    assert (client.arena == VALUE_FILL).all()


def compare(
    run: Run,
    op: str,
    params: Params,
    objects: Objects,
    limit: Driver,
    peers: Mapping[str, Driver],
) -> Comparison:
    """The sides of one point; each gives the median time and the rate of one series of calls."""
    value_bytes, batch = params["value_bytes"], params["batch"]
    call_bytes = value_bytes * batch
    most = run.workload["max_calls"]
    calls = min(most, max(LEAST_CALLS, run.workload["side_bytes"] // call_bytes))
    names = (f"{op}_p50_us", op) if op != "view" else (f"{op}_p50_us",)  # it moves nothing

    def side(ask: Ask, what: str, size: int = value_bytes, count: int = batch) -> Side:
        def ask_once() -> dict[str, float]:
            total_s, p50_s = ask(what, size, count, calls)
            values = (p50_s * 1e6, call_bytes * calls / total_s / 1e9)
            return dict(zip(names, values, strict=False))

        return ask_once

    # Nobody else hands out memory in place: theirs is the shortest way to the bytes.
    theirs = "get_into" if op == "view" else op
    raw = "write" if op == "put" else "read"
    copies = run.workload["transport"] == "shm"
    return Comparison(
        name=names,
        params=params,
        ours=side(objects.ask, op),
        limit=Limit(
            name="copy memfd to memfd" if copies else "raw request and answer over TCP",
            # As one block, whatever the batch is.
            measure=side(limit.ask, "copy" if copies else raw, call_bytes, 1),
        ),
        peers={label: side(driver.ask, theirs) for label, driver in peers.items()},
    )
