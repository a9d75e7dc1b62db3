"""kernels/beside_torch: dense layers beside warm PyTorch threads, and in a process without PyTorch.

An engine has both: kernels run on their pool, sampling on PyTorch's (OpenMP), whose threads spin
for a while after each call and then sleep. Ours are kernels in this process, `idle_s` after
PyTorch computed on as many threads. The peer is a process that never loads it, asked in turns with
ours after the same pause.
"""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.triples import Comparison
from inlay import kernels

CALLS = 5
Layer = Callable[[int], float]


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per pause and number of tokens."""
    import torch

    torch.set_num_threads(kernels.num_threads())
    square = torch.ones(512, 512)
    ours = layer(run.workload)
    with process_without_torch(run.workload) as alone:
        for params in run.params("forward"):

            def beside(params: Mapping[str, Any] = params) -> float:
                torch.mm(square, square)
                time.sleep(params["idle_s"])
                return ours(params["tokens"])

            def without(params: Mapping[str, Any] = params) -> float:
                time.sleep(params["idle_s"])
                return alone(params["tokens"])

            yield Comparison(
                name="forward",
                params=params,
                ours=beside,
                peers={"without torch": without},
                seeds=run.seeds,
            )


def layer(workload: Mapping[str, Any]) -> Layer:
    """Median milliseconds of a few calls for so many tokens."""
    inner, outer = workload["in_features"], workload["out_features"]
    weight = kernels.LinearWeight(outer, inner, workload["format"])
    rng = np.random.default_rng(0)
    rows = 4096
    for first in range(0, outer, rows):
        weight.set_rows(first, rng.standard_normal((rows, inner), np.float32))

    def median_ms(tokens: int) -> float:
        x_TK = np.ones((tokens, inner), np.float32)
        out_TN = np.empty((tokens, outer), np.float32)
        taken = []
        for _ in range(CALLS):
            start = time.perf_counter()
            kernels.linear(x_TK, weight, out_TN)
            taken.append((time.perf_counter() - start) * 1e3)
        return statistics.median(taken)

    return median_ms


@contextmanager
def process_without_torch(workload: Mapping[str, Any]) -> Iterator[Layer]:
    """The same layer in a process of its own, which works only when it is asked."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_answer, args=(there, dict(workload)), daemon=True)
    process.start()

    def ask(tokens: int) -> float:
        here.send(tokens)
        answer: float = here.recv()
        return answer

    try:
        ask(1)
        yield ask
    finally:
        process.kill()
        process.join()


def _answer(connection: Connection, workload: Mapping[str, Any]) -> None:
    median_ms = layer(workload)
    if "torch" in sys.modules:
        raise RuntimeError("something imports torch: this process is no peer without it")
    while True:
        connection.send(median_ms(connection.recv()))
