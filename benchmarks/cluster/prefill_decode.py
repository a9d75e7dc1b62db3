"""cluster/prefill_decode: one instance for prompts and one for tokens, beside two that do both.

Both clusters have two instances of one thread each. Those that do both compute prompts in chunks of
the size that gives the greatest goodput, found first. Requests come at the same times, at a part of
what the chunked cluster can do at once; the clusters take turns. Also: how soon the decode starts
after the prefill.
"""

import random
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.cluster import figures
from benchmarks.cluster.capacity import mixed, objectives, saturated
from benchmarks.cluster.fleet import Fleet, running
from benchmarks.cluster.handover import Pair
from benchmarks.cluster.load import answered, play
from benchmarks.cluster.workloads import Arrival, random_prompt
from benchmarks.triples import Samples
from inlay.cluster.slo import SloClass
from tests.support.tiny_models import make_tiny_model

SPLIT = ("prefill", "decode")
WHOLE = ("both", "both")
FIRST_CHUNK = 512  # what objectives and rates are measured with


def measure(run: Run) -> Generator[Samples, None, None]:
    """The hand-over, then each workload."""
    with tempfile.TemporaryDirectory() as name:
        clusters = _Clusters(run, Path(name))
        with clusters.start(SPLIT) as split:
            yield from _decode_start(run, split)
        for params in run.params("best_chunk"):
            yield from _beside(run, clusters, params)


class _Clusters:
    """Starts two instances of the case's model."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._folder = folder
        self._engine = run.workload["engine"]
        self._model = make_tiny_model(folder / "model", dtype="bfloat16", **run.workload["random"])

    def start(
        self, roles: Sequence[Any], chunk: int = FIRST_CHUNK
    ) -> AbstractContextManager[Fleet]:
        """Steps are no longer than a chunk and what decodes beside it."""
        running_at_once = self._engine["max_running"]
        scheduler = {
            "prefill_chunk": chunk,
            "max_running": running_at_once,
            "max_batch_tokens": chunk + running_at_once,
        }
        return running(
            self._model,
            self._folder,
            roles,
            exchange="127.0.0.1:0",
            scheduler=scheduler,
            cache={"pages": self._engine["pages"]},
        )


def _decode_start(run: Run, split: Fleet) -> Iterator[Samples]:
    draw = random.Random(run.seeds[0])
    for params in run.params("decode_start_ms"):
        with closing(Pair(split)) as pair:
            found = [
                pair.ask(random_prompt(draw, params["prompt_tokens"]))
                for _ in range(run.repeats * run.workload["prompts"] + 1)
            ][1:]
        values = {
            "prefill_ms": [1000 * one["prefill_s"] for one in found],
            "decode_start_ms": [1000 * one["delay_s"] for one in found],
            "decode_start_delay_ratio": [one["delay_s"] / one["prefill_s"] for one in found],
        }
        for name, samples in values.items():
            yield Samples(name=name, params=params, values=samples, seeds=run.seeds)


def _beside(run: Run, clusters: _Clusters, params: dict[str, Any]) -> Iterator[Samples]:
    """One workload on both."""
    kinds = run.workload["kinds"][params["workload"]]
    policy = run.workload["policy"]
    seed = run.seeds[0]
    with clusters.start(WHOLE) as whole, whole.dispatcher(policy) as url:
        slo = objectives(url, mixed(seed, run.workload["unloaded_requests"], kinds))
        rate = saturated(url, mixed(seed + 1, run.workload["requests"], kinds))
    rate *= run.workload["load"]

    def arrivals(repeat: int) -> list[Arrival]:
        return mixed(seed + 2 + repeat, run.workload["requests"], kinds, rate)

    goodputs = {}
    for chunk in run.workload["chunks"]:
        with clusters.start(WHOLE, chunk) as whole:
            goodputs[chunk] = _figures(whole, policy, arrivals(0), slo)["goodput_per_s"]
    best = max(goodputs, key=goodputs.__getitem__)
    yield Samples(name="best_chunk", params=params, values=[best])
    split_runs, whole_runs = [], []
    with clusters.start(WHOLE, best) as whole, clusters.start(SPLIT) as split:
        for repeat in range(run.repeats):
            pair = [(split, split_runs), (whole, whole_runs)]
            for fleet, runs in pair if repeat % 2 else reversed(pair):
                runs.append(_figures(fleet, policy, arrivals(1 + repeat), slo))
    for name in split_runs[0]:
        ratios = [
            ours[name] / max(1e-9, theirs[name])
            for ours, theirs in zip(split_runs, whole_runs, strict=True)
        ]
        yield Samples(
            name=f"{name.removesuffix('_s').removesuffix('_per')}_ratio",
            params=params,
            values=ratios,
            seeds=run.seeds,
        )


def _figures(
    fleet: Fleet, policy: str, arrivals: Sequence[Arrival], slo: SloClass
) -> dict[str, float]:
    """Gaps are those of requests with the shortest prompts, which decode while others compute."""
    with fleet.dispatcher(policy) as url:
        records = answered(play(url, arrivals))
    shortest = min(len(arrival.prompt) for arrival in arrivals)
    decoding = [
        record
        for record, arrival in zip(records, arrivals, strict=True)
        if len(arrival.prompt) == shortest
    ]
    return {
        "p99_itl_s": figures.p99_itl_s(decoding),
        "mean_itl_s": float(np.mean([gap for record in decoding for gap in record.itl_s])),
        "mean_ttft_s": figures.times(records)["mean_ttft_s"],
        "goodput_per_s": figures.goodput(records, slo),
    }
