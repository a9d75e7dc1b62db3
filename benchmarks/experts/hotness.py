"""experts/hotness: how near resident experts come to the best ones, and how soon after a shift."""

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.experts.zipf import Popularity, Routing, zipf
from benchmarks.triples import Comparison, Samples
from inlay.experts import Hotness

BEST = "the distribution's best experts"
ENOUGH = 0.9
CALLS = 200


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run.

    Attributes:
        shares: measured, by the part's name.
        steps: until the shift was followed.
        moves: per layer and step, once warm.
    """

    shares: dict[str, float]
    steps: int
    moves: float


def measure(run: Run) -> Generator[Samples | Comparison, None, None]:
    """Each distribution with each number of tokens, and what deciding takes."""
    given = run.workload
    for params in run.params("moves_per_layer_step"):
        popularity = zipf(given["experts"], given["per_token"], params["skew"])
        outcomes = [
            simulate(given, popularity, params["tokens"], run.seeds[0] + repeat)
            for repeat in range(run.repeats)
        ]
        best = popularity.best_share(given["resident"])
        for when in ("warm", "after_shift"):
            shares = [one.shares[when] for one in outcomes]
            yield sample(run, "device_share", shares, {**params, "when": when}, (BEST, best))
        yield sample(run, "steps_to_follow", [one.steps for one in outcomes], params)
        yield sample(run, "moves_per_layer_step", [one.moves for one in outcomes], params)
    for params in run.params("step_us"):
        yield deciding(params["layers"], params["experts"], params)


def sample(
    run: Run,
    name: str,
    values: list[float] | list[int],
    params: dict[str, object],
    limit: tuple[str, float] | None = None,
) -> Samples:
    """Values of all repeats."""
    return Samples(
        name=name, values=values, params=params, limit=limit, seeds=run.seeds, simulated=True
    )


def simulate(given: dict[str, Any], popularity: Popularity, tokens: int, seed: int) -> Outcome:
    """Warm up, shift, follow."""
    layers, warm, after = given["layers"], given["warm_steps"], given["shift_steps"]
    routing = Routing(popularity, layers, seed)
    hotness = Hotness(layers, given["experts"])
    resident_LE = np.zeros((layers, given["experts"]), dtype=bool)
    resident_LE[:, : given["resident"]] = True
    on_device, expected, moved = [], [], []
    for step in range(warm + after):
        if step == warm:
            routing.shift()
        expected.append(routing.share(resident_LE))
        counts_LE = routing.counts(tokens)
        on_device.append(float(counts_LE[resident_LE].sum() / counts_LE.sum()))
        hotness.observe(counts_LE)
        moves = hotness.choose(resident_LE, given["moves_per_step"], 1)
        for move in moves:
            resident_LE[move.layer, move.promoted] = True
            resident_LE[move.layer, move.demoted] = False
        moved.append(len(moves) / layers)
    window = given["window_steps"]
    enough = ENOUGH * popularity.best_share(given["resident"])
    followed = [share >= enough for share in expected[warm:]]
    return Outcome(
        shares={
            "warm": float(np.mean(on_device[warm - window : warm])),
            "after_shift": float(np.mean(on_device[-window:])),
        },
        steps=followed.index(True) if True in followed else after,
        moves=float(np.mean(moved[warm - window : warm])),
    )


def deciding(layers: int, experts: int, params: dict[str, object]) -> Comparison:
    """A step's part of the decision, with a move in every layer, the most there is to do."""
    rng = np.random.default_rng(0)
    hotness = Hotness(layers, experts)
    counts = [rng.integers(0, 2, size=(layers, experts), dtype=np.uint32) for _ in range(16)]
    resident_LE = np.zeros((layers, experts), dtype=bool)
    resident_LE[:, : experts // 10] = True

    def ours() -> float:
        begin = time.perf_counter()
        for call in range(CALLS):
            hotness.observe(counts[call % len(counts)])
            hotness.choose(resident_LE, layers, 1)
        return (time.perf_counter() - begin) / CALLS * 1e6

    return Comparison(name="step_us", params=params, ours=ours)
