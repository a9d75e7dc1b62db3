"""kernels/beside_torch: dense layers beside PyTorch's threads, and in a process without PyTorch.

Ours are runs of calls in a process where PyTorch has computed on as many threads. In one case that
was long ago, and its threads sleep, as they do in an engine, whose steps use none of them on a CPU.
In the other it computes right before, and its threads still spin. The peer is a process that never
loads PyTorch, asked in turns with ours. Weights fit into the cores' caches: a layer of some
microseconds is the one that a held-up thread hurts most.
"""

import multiprocessing
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

SPUN_OUT_S = 0.5
Layer = Callable[[int, Callable[[], object]], float]


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per state of PyTorch's threads and number of tokens."""
    import torch

    torch.set_num_threads(kernels.num_threads())
    square = torch.ones(512, 512)
    ours = layer(run.workload)
    before = {"idle": lambda: None, "just used": lambda: torch.mm(square, square)}
    with process_without_torch(run.workload) as alone:
        for params in run.params("forward"):
            torch.mm(square, square)
            time.sleep(SPUN_OUT_S)

            def beside(params: Mapping[str, Any] = params) -> float:
                return ours(params["tokens"], before[params["threads"]])

            def without(params: Mapping[str, Any] = params) -> float:
                return alone(params["tokens"])

            yield Comparison(
                name="forward",
                params=params,
                ours=beside,
                peers={"without torch": without},
                seeds=run.seeds,
            )


def layer(workload: Mapping[str, Any]) -> Layer:
    """Mean microseconds of a call, the pool being awake; something happens right before."""
    side = (workload["out_features"], workload["in_features"])
    weight_NK = np.random.default_rng(0).standard_normal(side, np.float32)
    weight = kernels.pack_linear(weight_NK, workload["format"])

    def mean_us(tokens: int, before: Callable[[], object]) -> float:
        x_TK = np.ones((tokens, side[1]), np.float32)
        out_TN = np.empty((tokens, side[0]), np.float32)
        calls = workload["run_us"] // workload["call_us"][str(tokens)]
        for _ in range(calls):
            kernels.linear(x_TK, weight, out_TN)
        before()
        start = time.perf_counter()
        for _ in range(calls):
            kernels.linear(x_TK, weight, out_TN)
        return (time.perf_counter() - start) * 1e6 / calls

    return mean_us


@contextmanager
def process_without_torch(workload: Mapping[str, Any]) -> Iterator[Callable[[int], float]]:
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
    mean_us = layer(workload)
    if "torch" in sys.modules:
        raise RuntimeError("something imports torch: this process is no peer without it")
    while True:
        connection.send(mean_us(connection.recv(), lambda: None))
