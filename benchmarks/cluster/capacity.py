"""What a cluster can do: alone, at once, and at a rate."""

import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.cluster import figures
from benchmarks.cluster.load import answered, play
from benchmarks.cluster.workloads import Arrival, random_prompt
from inlay.cluster.slo import SloClass
from inlay.serve.bench.records import RequestRecord

SLO_TIMES = 3.0
"""Objectives are so many times the 90th percentile without load."""


def mixed(
    seed: int, count: int, kinds: Sequence[dict[str, float]], rate: float = 1.0
) -> list[Arrival]:
    """Prompts that nobody has seen, at times of a Poisson process.

    Args:
        kinds: of requests, each with `prompt_tokens`, `output_tokens` and its `share` of them.
    """
    draw = random.Random(seed)
    chosen = draw.choices(kinds, [kind["share"] for kind in kinds], k=count)
    time_s, arrivals = 0.0, []
    for kind in chosen:
        prompt = random_prompt(draw, int(kind["prompt_tokens"]))
        arrivals.append(Arrival(time_s, prompt, int(kind["output_tokens"])))
        time_s += draw.expovariate(rate)
    return arrivals


def unloaded(url: str, arrivals: Sequence[Arrival]) -> list[RequestRecord]:
    """One request after the other."""
    return [answered(play(url, [replace(one, time_s=0.0)]))[0] for one in arrivals]


def objectives(url: str, arrivals: Sequence[Arrival]) -> SloClass:
    """What requests have to keep, measured before any load."""
    return figures.objectives(unloaded(url, arrivals), SLO_TIMES)


def saturated(url: str, arrivals: Sequence[Arrival]) -> float:
    """Requests a second when all are there at once."""
    return figures.throughput(answered(play(url, [replace(one, time_s=0.0) for one in arrivals])))
