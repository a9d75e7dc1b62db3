"""sim/validity: a simulation beside the real deployment that it is of, on this machine.

The deployment is calibrated before and after each run; where the two differ by more than 10 %, the
machine changed meanwhile: the run is dropped and another one made. Each run is simulated with what
was measured around it: the same requests at the same times, the same policy, pages and limits of
steps. Nothing is fitted to the runs that are compared.

Errors are of the means of all runs, as shares of the real one; of the hit ratio, points. The mean
TTFT is to be within a tenth, or within one and a half times the spread of the real runs where that
is more: the greatest of them less the least, over their mean.
"""

import os
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from benchmarks.case import Run
from benchmarks.cluster import figures
from benchmarks.cluster.capacity import saturated
from benchmarks.cluster.fleet import Fleet, running
from benchmarks.cluster.load import answered, play
from benchmarks.cluster.workloads import (
    PAGE_TOKENS,
    Arrival,
    at_rate,
    footprint_pages,
    trace,
)
from benchmarks.sim import predicted
from benchmarks.sim.measured import Front, Steps, between, front, steps
from benchmarks.sim.predicted import Deployment
from benchmarks.triples import NOISE, Samples
from inlay.core.instance_messages import Role
from inlay.serve.bench.records import RequestRecord
from tests.support.tiny_models import make_tiny_model

ROLES: dict[str, tuple[Role, ...]] = {"one": ("both",), "pd": ("prefill", "decode")}
ALLOWED = ("a tenth, or 1.5 times the spread of real runs", 0.1, 1.5)

Figures = dict[str, float]


def measure(run: Run) -> Generator[Samples, None, None]:
    """All measurements for each deployment and load."""
    loads: dict[str, list[float]] = {}
    for params in run.params("mean_ttft_error"):  # declared for all of them at once
        loads.setdefault(params["deployment"], []).append(params["load"])
    arrivals = trace(seed=run.seeds[0], **run.workload["requests"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_tiny_model(folder / "model", dtype="bfloat16", **run.workload["random"])
        engine = {"scheduler": run.workload["scheduler"], "cache": {"pages": _pages(run, arrivals)}}
        for deployment, wanted in loads.items():
            with running(model, folder, ROLES[deployment], **engine) as fleet:
                bench = _Bench(run, fleet, deployment, arrivals)
                for load in wanted:
                    yield from bench.compare(load)


def _pages(run: Run, arrivals: Sequence[Arrival]) -> int:
    """Of each instance: a part of all different ones, but room for two of the longest requests."""
    longest = max(len(one.prompt) + one.output_tokens for one in arrivals)
    part = round(run.workload["pool_share"] * footprint_pages(arrivals))
    return max(part, 2 * (longest // PAGE_TOKENS + 1))


class _Bench:
    """One deployment, and what was measured of it before its runs."""

    def __init__(self, run: Run, fleet: Fleet, name: str, arrivals: Sequence[Arrival]) -> None:
        self._run = run
        self._fleet = fleet
        self._arrivals = arrivals
        self._name = name
        self._timing = fleet.folder / f"timing_{name}"
        self._deployment = Deployment(
            roles=ROLES[name],
            policy=run.workload["policy"],
            cores=len(os.sched_getaffinity(0)),
            seed=run.seeds[0],
        )
        self._steps = self._calibrated()
        self._front = self._measured_front()
        with self._dispatcher() as url:
            self._capacity = saturated(url, arrivals)

    def compare(self, load: float) -> Iterator[Samples]:
        """Real runs at a part of what the deployment can do at once, and simulated ones."""
        arrivals = at_rate(self._arrivals, load * self._capacity)
        real: list[Figures] = []
        simulated: list[Figures] = []
        tried = 0
        while len(real) < self._run.repeats and tried < 2 * self._run.repeats:
            tried += 1
            before = self._steps
            with self._dispatcher() as url:
                found = _figures(answered(play(url, arrivals)))
            self._steps = after = self._calibrated()
            if self._steady(before, after, arrivals):
                real.append(found)
                simulated.append(self._simulated(between(before, after), arrivals))
        dropped = tried - len(real)
        if len(real) < self._run.repeats:
            real, simulated = [], []
        params = {"deployment": self._name, "load": load}
        yield from _samples(params, real, simulated, dropped, self._run.seeds)

    def _calibrated(self) -> Steps:
        return steps(self._fleet.members, self._timing, self._run.workload["calibrate_s"])

    def _dispatcher(self) -> AbstractContextManager[str]:
        """One that begins with what was measured last."""
        return self._fleet.dispatcher(self._deployment.policy, timing=str(self._timing))

    def _measured_front(self) -> Front:
        with self._dispatcher() as url:
            return front(
                url,
                self._arrivals[: self._run.workload["unloaded_requests"]],
                self._steps.info.prefill_chunk,
                self._run.seeds[0],
                lambda asked: predicted.apart(self._deployment, self._steps, asked),
            )

    def _simulated(self, measured: Steps, arrivals: Sequence[Arrival]) -> Figures:
        return predicted.figures(self._deployment, measured, self._front, arrivals)

    def _steady(self, before: Steps, after: Steps, arrivals: Sequence[Arrival]) -> bool:
        """Whether the work of a run took as long before as after."""
        busy_s = [self._simulated(one, arrivals)["busy_s"] for one in (before, after)]
        return max(busy_s) - min(busy_s) <= NOISE * max(busy_s)


def _figures(records: Sequence[RequestRecord]) -> Figures:
    ttft_s = [figures.ttft_s(record) for record in records]
    prompts = sum(record.prompt_tokens or 0 for record in records)
    return {
        "mean_ttft_s": float(np.mean(ttft_s)),
        "p90_ttft_s": float(np.percentile(ttft_s, 90)),
        "throughput": figures.throughput(records),
        "hit_ratio": sum(record.cached_tokens or 0 for record in records) / prompts,
    }


def _samples(
    params: dict[str, object],
    real: Sequence[Figures],
    simulated: Sequence[Figures],
    dropped: int,
    seeds: Sequence[int],
) -> Iterator[Samples]:
    for name in ("mean_ttft_s", "p90_ttft_s", "throughput", "hit_ratio"):
        truth, twin = (figures.by_name(runs, name) for runs in (real, simulated))
        yield Samples(
            name=name,
            params=params,
            values=truth,
            peers={"simulated": twin} if twin else {},
            dropped=dropped,
            seeds=seeds,
        )
        off = abs(np.mean(twin) - np.mean(truth)) if real else 0.0
        if name == "hit_ratio":
            values = [100.0 * off]
        else:
            values = [off / np.mean(truth)] if real else []
        yield Samples(
            name=f"{name.removesuffix('_s')}_error",
            params=params,
            values=[float(value) for value in values] if real else [],
            limit=_allowed(truth) if real and name == "mean_ttft_s" else None,
            dropped=dropped,
            seeds=seeds,
        )


def _allowed(truth: Sequence[float]) -> tuple[str, float]:
    """The error that a mean TTFT may have."""
    name, least, times = ALLOWED
    return name, max(least, times * (max(truth) - min(truth)) / float(np.mean(truth)))
