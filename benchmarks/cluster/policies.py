"""cluster/policies: hits and TTFT of each policy with the same requests at the same times.

Three instances without a store; their pools together hold a part of what all prompts take. The
rate is a part of what these instances can do when nothing is found, measured before; each request
is due at the same time whatever became of those before it. Policies take turns.
"""

import random
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.case import Run
from benchmarks.cluster import figures
from benchmarks.cluster.fleet import Fleet, running
from benchmarks.cluster.load import answered, play
from benchmarks.cluster.workloads import (
    PAGE_TOKENS,
    Arrival,
    at_rate,
    by_name,
    footprint_pages,
    random_prompt,
    reusable_tokens,
)
from benchmarks.triples import Samples
from tests.support.tiny_models import make_tiny_model

INSTANCES = 3
MEASURED = ("hit_tokens", "mean_ttft_s", "p99_ttft_s")
# What a policy is recorded beside: the targets are of these.
BESIDE = {"kv_centric": ("round_robin",), "inlay": ...}

Runs = Mapping[str, Sequence[Mapping[str, float]]]


def measure(run: Run) -> Generator[Samples, None, None]:
    """Three measurements for each workload and policy."""
    points: dict[str, list[str]] = {}
    for params in run.params("p99_ttft_s"):  # declared for all of them at once
        points.setdefault(params["workload"], []).append(params["policy"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_tiny_model(folder / "model", dtype="bfloat16", **run.workload["random"])
        for workload, policies in points.items():
            arrivals = _arrivals(run, workload)
            pages = _pages(run, arrivals)
            roles = ("both",) * INSTANCES
            with running(model, folder, roles, cache={"pages": pages}) as fleet:
                arrivals = at_rate(arrivals, run.workload["load"] * _capacity(fleet, arrivals))
                yield from _samples(
                    run, workload, arrivals, _take_turns(run, fleet, policies, arrivals)
                )


def _arrivals(run: Run, workload: str) -> list[Arrival]:
    options = run.workload["options"].get(workload, {})
    return by_name(workload, run.seeds[0], run.workload["requests"], **options)


def _pages(run: Run, arrivals: Sequence[Arrival]) -> int:
    """Of each instance: its part of the footprint, but room for two of the longest requests."""
    longest = max(len(one.prompt) + one.output_tokens for one in arrivals)
    part = run.workload["pool_share"] * footprint_pages(arrivals) / INSTANCES
    return max(round(part), 2 * (longest // PAGE_TOKENS + 1))


def _capacity(fleet: Fleet, arrivals: Sequence[Arrival]) -> float:
    """Requests a second of these lengths, all there at once, when no two share anything."""
    draw = random.Random(1)
    fresh = [
        replace(one, time_s=0.0, prompt=random_prompt(draw, len(one.prompt)))
        for one in draw.sample(arrivals, min(len(arrivals), 20 * INSTANCES))
    ]
    with fleet.dispatcher("least_loaded") as url:
        return figures.throughput(answered(play(url, fresh)))


def _take_turns(
    run: Run, fleet: Fleet, policies: Sequence[str], arrivals: Sequence[Arrival]
) -> dict[str, list[dict[str, float]]]:
    runs: dict[str, list[dict[str, float]]] = {policy: [] for policy in policies}
    for repeat in range(run.repeats):
        for policy in figures.in_turns(policies, repeat):
            with fleet.dispatcher(policy) as url:
                runs[policy].append(figures.times(answered(play(url, arrivals))))
    return runs


def _samples(
    run: Run, workload: str, arrivals: Sequence[Arrival], runs: Runs
) -> Generator[Samples, None, None]:
    reusable = float(reusable_tokens(arrivals))
    for policy in runs:
        beside = BESIDE.get(policy, ())
        others = [other for other in runs if other != policy and (beside is ... or other in beside)]
        for name in MEASURED:
            if name == "hit_tokens" and not reusable:
                continue
            yield Samples(
                name=name,
                params={"policy": policy, "workload": workload},
                values=figures.by_name(runs[policy], name),
                limit=("all that came before", reusable) if name == "hit_tokens" else None,
                peers={other: figures.by_name(runs[other], name) for other in others},
                seeds=run.seeds,
            )
