"""Runner of connect/mooncake_api."""

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import Run
from benchmarks.cores import asking_apart
from benchmarks.transfer import drivers
from benchmarks.transfer.drivers import Driver
from benchmarks.triples import Comparison, Limit, Side

CALLER = "benchmarks.connect.mooncake_caller"
LEAST_CALLS = 4
ROUND_TRIP_BYTES = 64

Ask = Callable[[str, int, int, int], tuple[float, float]]


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One program, with Inlay and with Mooncake's package: the median call of each method.

    Where `way` is "tcp", both have MC_FORCE_TCP: no shared memory, and who asks and who answers
    have a core each. Else Inlay takes the fastest way there is, and so does Mooncake.
    """
    with drivers.limits() as limit:
        for where, points in grouped(run).items():
            with callers(run, *where) as sides, contextlib.ExitStack() as stack:
                if where[1] == "tcp":
                    asking = [limit, *sides.values()]
                    stack.enter_context(asking_apart(one.process.pid for one in asking))
                for name, params in points:
                    yield compare(run, name, params, limit, sides)


def grouped(run: Run) -> dict[tuple[str, str], list[tuple[str, dict[str, Any]]]]:
    """The points by what has to run for them: where values lie, and the way to them."""
    found: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    names = dict.fromkeys(one.name for one in run.case.measurements)
    for name in names:
        for params in run.params(name):
            where = (params.get("memory", "engine"), params["way"])
            found.setdefault(where, []).append((name, params))
    return found


@contextlib.contextmanager
def callers(run: Run, part: str, way: str) -> Iterator[Mapping[str, Driver]]:
    """Drivers under their labels, ours under ""."""
    environment = {"MC_FORCE_TCP": "1"} if way == "tcp" else {}
    command = [sys.executable, "-m", "inlay.connect.mooncake", "-m", CALLER, part]
    torch_folder = str(Path(torch.__file__).parents[1])
    with (
        Driver(command, environment, stopped=False) as ours,
        drivers.started(
            run.peers,
            "mooncake",
            "mooncake-transfer-engine-non-cuda",
            CALLER,
            modes={"": [part, torch_folder]},
            environment=environment,
            stopped=False,
        ) as peers,
    ):
        yield {"": ours, **peers}


def compare(
    run: Run,
    name: str,
    params: Mapping[str, Any],
    limit: Driver,
    sides: Mapping[str, Driver],
) -> Comparison:
    """One method at one size."""
    value_bytes, batch = params["value_bytes"], params.get("batch", 1)
    call_bytes = value_bytes * batch
    most = run.workload["max_calls"]
    calls = min(most, max(LEAST_CALLS, run.workload["side_bytes"] // call_bytes))
    what = name.removesuffix("_p50_us")

    def side(ask: Ask, what: str, size: int, count: int) -> Side:
        return lambda: ask(what, size, count, calls)[1] * 1e6

    writes = "put" in what or what.endswith("write")
    if what == "batch_is_exist":
        raw, size, told = "read", ROUND_TRIP_BYTES, "raw round trip over TCP"
    elif params["way"] == "tcp":
        raw, size, told = "write" if writes else "read", call_bytes, "raw request and answer"
    else:
        raw, size, told = "copy", call_bytes, "copy memfd to memfd"
    return Comparison(
        name=name,
        params=params,
        ours=side(sides[""].ask, what, value_bytes, batch),
        limit=Limit(name=told, measure=side(limit.ask, raw, size, 1)),
        peers={
            label: side(driver.ask, what, value_bytes, batch)
            for label, driver in sides.items()
            if label
        },
    )
