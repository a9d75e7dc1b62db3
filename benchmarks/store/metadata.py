"""store/metadata: what the master does: lookups beside others' over the same kind of socket, its
memory for each object, and how long calls take while a full store of millions of objects changes.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.cores import asking_apart
from benchmarks.store.calls import Objects
from benchmarks.store.churn_side import KEY_BYTES, RECORD_BYTES, VALUE_BYTES
from benchmarks.store.ours import running_store
from benchmarks.store.values import mooncake, redis
from benchmarks.transfer import drivers
from benchmarks.transfer.drivers import Driver
from benchmarks.transfer.told import Told, module
from benchmarks.triples import Comparison, Limit, Samples, Side
from inlay.serve.bench.store import OwnStore, own_store
from inlay.store import Store

Params = Mapping[str, Any]
LOOKUP_BYTES = 64
LOOKUP_MEMORY = 64 << 20
LIMIT_TIMES = 10
# A node evicts ahead of demand: so much of its memory holds objects.
FULL = 0.85


def measure(run: Run) -> Generator[Comparison | Samples, None, None]:
    """Lookups, then memory and churn in one store that is filled once."""
    with contextlib.ExitStack() as stack:
        limit = stack.enter_context(drivers.limits())
        peers = {
            **stack.enter_context(redis(run, "tcp")),
            **stack.enter_context(mooncake(run, "tcp")),
        }
        objects, _ = stack.enter_context(running_store(LOOKUP_MEMORY))
        stack.enter_context(asking_apart(one.process.pid for one in (limit, *peers.values())))
        for name in ("exists", "exists_many"):
            for params in run.params(name):
                yield lookups(run, name, params["batch"], objects, limit, peers)
    for params in run.params("bytes_per_object"):
        yield from filled(run, params)


def lookups(
    run: Run,
    name: str,
    batch: int,
    objects: Objects,
    limit: Driver,
    peers: Mapping[str, Driver],
) -> Comparison:
    """One client, one question in flight; keys per second."""
    calls = max(run.workload["least_calls"], run.workload["side_keys"] // batch)

    def side(
        driver: Objects | Driver, what: str, value_bytes: int, count: int, calls: int = calls
    ) -> Side:
        def ask_once() -> float:
            total_s, _ = driver.ask(what, value_bytes, count, calls)
            return batch * calls / total_s

        return ask_once

    return Comparison(
        name=name,
        params={"batch": batch},
        ours=side(objects, "exists", LOOKUP_BYTES, batch),
        limit=Limit(
            name="raw request and answer over TCP",
            # Of as many keys; and for as long as the peers take, or it tells of another moment.
            measure=side(limit, "read", LOOKUP_BYTES, 1, LIMIT_TIMES * calls),
        ),
        peers={
            label: side(driver, "exists", LOOKUP_BYTES, batch) for label, driver in peers.items()
        },
    )


def filled(run: Run, params: Params) -> Generator[Samples, None, None]:
    """A store with so many objects that it is full."""
    most = params["objects"]
    memory_bytes = int(most * RECORD_BYTES / FULL)
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(own_store(memory_bytes))
        store = stack.enter_context(Store.connect(own.master, token=own.token))
        token = own.token.hex()
        churn = stack.enter_context(Told(module("benchmarks.store.churn_side", own.master, token)))
        sizes = []
        for part in (1, 3, 5):
            churn.tell(f"fill {most * part // 5}")
            sizes.append((most * part // 5, resident_bytes(own)))
        yield Samples(
            name="bytes_per_object",
            params=params,
            values=[(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(sizes, sizes[1:], strict=False)],
        )
        churn.tell("churn")
        yield from beside_churn(run, params, store)


def beside_churn(run: Run, params: Params, store: Store) -> Generator[Samples, None, None]:
    """The slowest of 100 calls, and the slowest of all, of each of several rounds."""
    calls: dict[str, Callable[[], object]] = {
        "exists": lambda: store.exists(secrets.token_hex(KEY_BYTES // 2)),
        "put": lambda: store.put(secrets.token_hex(KEY_BYTES // 2), bytes(VALUE_BYTES)),
    }
    for name, call in calls.items():
        rounds = [
            seconds_of(call, run.workload["churn_s"] / run.repeats) for _ in range(run.repeats)
        ]
        yield Samples(
            name="churn_p99_ms",
            params={**params, "call": name},
            values=[float(np.percentile(taken, 99)) * 1e3 for taken in rounds],
        )
        yield Samples(
            name="churn_max_ms",
            params={**params, "call": name},
            values=[max(taken) * 1e3 for taken in rounds],
        )


def seconds_of(call: Callable[[], object], seconds: float) -> list[float]:
    """Of each call, one behind the other."""
    taken = []
    before = time.perf_counter()
    end = before + seconds
    while before < end:
        call()
        after = time.perf_counter()
        taken.append(after - before)
        before = after
    return taken


def resident_bytes(own: OwnStore) -> int:
    """Of the master's process."""
    text = Path(f"/proc/{own.master_pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024
