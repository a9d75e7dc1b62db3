"""selftest/copy: shows a runner at its smallest, and that the framework works on this machine."""

import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.triples import Comparison, Limit


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per block size; rates in 10^9 bytes per second."""
    for params in run.params("copy"):
        yield compare(params, run.workload["calls"])


def compare(params: dict[str, Any], calls: int) -> Comparison:
    """Ours is an array assignment; the limit is the copy that it stands on."""
    source = np.zeros(params["block_bytes"], np.uint8)
    target = np.ones_like(source)
    from_view, to_view = source.data, target.data

    def rate(copy: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            copy()
        return source.nbytes * calls / (time.perf_counter() - start) / 1e9

    def assign() -> None:
        target[:] = source

    def assign_view() -> None:
        to_view[:] = from_view

    return Comparison(
        name="copy",
        params=params,
        ours=lambda: rate(assign),
        limit=Limit(name="copyto", measure=lambda: rate(lambda: np.copyto(target, source))),
        peers={"memoryview": lambda: rate(assign_view)},
    )
