"""cluster/overload: goodput at twice the capacity over that at capacity, by admission or not.

Objectives are three times what takes 90 % of requests without load, measured first. Capacity is the
rate with the greatest goodput of some that are parts of what the cluster can do at once, without
admission. Then modes take turns, each at capacity and at twice that; both last as long. Goodput at
twice the capacity is compared with the best at capacity, with admission or not.
"""

import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.cluster import figures
from benchmarks.cluster.capacity import mixed, objectives, saturated
from benchmarks.cluster.fleet import Fleet, running
from benchmarks.cluster.load import play
from benchmarks.triples import Samples
from inlay.cluster.slo import SloClass
from tests.support.tiny_models import make_tiny_model

NO_ADMISSION = "off"
Figures = dict[str, float]
Runs = dict[tuple[str, int], list[Figures]]  # by mode and load


def measure(run: Run) -> Generator[Samples, None, None]:
    """All measurements for each mode."""
    work = run.workload
    modes = [params["admission"] for params in run.params("goodput_per_s") if params["load"] == 2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_tiny_model(folder / "model", dtype="bfloat16", **work["random"])
        with running(model, folder, work["roles"], **work["engine"]) as fleet:
            bench = _Bench(run, fleet)
            yield from bench.set_out()
            yield from _samples(run, bench.take_turns(modes))


class _Bench:
    """The cluster, what requests have to keep there, and how many a second it can take."""

    def __init__(self, run: Run, fleet: Fleet) -> None:
        self._run = run
        self._fleet = fleet
        self._kinds = run.workload["kinds"]
        self.slo = SloClass()  # none, until it is measured
        self.capacity = 0.0

    def set_out(self) -> Iterator[Samples]:
        """Measure objectives and capacity."""
        work = self._run.workload
        seed = self._run.seeds[0]
        with self._fleet.dispatcher(work["policy"], admission={"mode": NO_ADMISSION}) as url:
            self.slo = objectives(url, mixed(seed, work["unloaded_requests"], self._kinds))
            most = saturated(url, mixed(seed + 1, work["unloaded_requests"] * 4, self._kinds))
        found = {
            share * most: self._goodput(NO_ADMISSION, share * most, seed + 2)["goodput_per_s"]
            for share in work["capacity_shares"]
        }
        self.capacity = max(found, key=found.__getitem__)
        for of, value in (("ttft", self.slo.ttft_s), ("tbt", self.slo.tbt_s)):
            yield Samples(name="objective_s", params={"of": of}, values=[value])
        yield Samples(name="capacity_per_s", values=[self.capacity])

    def take_turns(self, modes: Sequence[str]) -> Runs:
        """Runs of each mode and load."""
        runs: Runs = {}
        for repeat in range(self._run.repeats):
            for mode in figures.in_turns(modes, repeat):
                for load in (1, 2):
                    seed = self._run.seeds[0] + 10 + repeat
                    found = self._goodput(mode, load * self.capacity, seed)
                    runs.setdefault((mode, load), []).append(found)
        return runs

    def _goodput(self, mode: str, rate: float, seed: int) -> Figures:
        work = self._run.workload
        slo = {"ttft_s": self.slo.ttft_s, "tbt_s": self.slo.tbt_s}
        setup: dict[str, Any] = {"admission": {"mode": mode}, "slo": {"default": slo}}
        arrivals = mixed(seed, round(rate * work["seconds"]), self._kinds, rate)
        with self._fleet.dispatcher(work["policy"], **setup) as url:
            records = play(url, arrivals)
        ttfts_s = [figures.ttft_s(record) for record in records if record.ok]
        return {
            "goodput_per_s": figures.goodput(records, self.slo),
            "refused_share": figures.refused_share(records),
            "p99_ttft_of_objective": float(np.percentile(ttfts_s, 99)) / self.slo.ttft_s,
        }


def _samples(run: Run, runs: Runs) -> Iterator[Samples]:
    for (mode, load), found in runs.items():
        for name in found[0]:
            yield Samples(
                name=name,
                params={"admission": mode, "load": load},
                values=figures.by_name(found, name),
                seeds=run.seeds,
            )
    ratios = {mode: _ratios(runs, mode) for mode, load in runs if load == 2}
    for mode, values in ratios.items():
        params = {"admission": mode}
        yield Samples(name="goodput_ratio", params=params, values=values, seeds=run.seeds)
        if mode != NO_ADMISSION and NO_ADMISSION in ratios:
            losses = [
                max(0.0, 1 - ours) / max(1e-3, 1 - without)
                for ours, without in zip(values, ratios[NO_ADMISSION], strict=True)
            ]
            yield Samples(name="loss_ratio", params=params, values=losses, seeds=run.seeds)


def _ratios(runs: Runs, mode: str) -> list[float]:
    """Goodput at twice the capacity over the best at capacity, with admission or not.

    So a mode gains nothing by refusing too many at capacity.
    """
    at_capacity = [
        figures.by_name(found, "goodput_per_s") for (_, load), found in runs.items() if load == 1
    ]
    best = [max(goodputs) for goodputs in zip(*at_capacity, strict=True)]
    twice = figures.by_name(runs[mode, 2], "goodput_per_s")
    return [ours / max(1e-9, once) for ours, once in zip(twice, best, strict=True)]
