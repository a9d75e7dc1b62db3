"""What plots show, as rows: a dictionary per point, each with the name of its run.

Times of `R` requests become at most `POINTS` points per run, so that a report of a million requests
is as small as one of a hundred.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.sim.figures import attainment
from inlay.sim.report.run import Run
from inlay.sim.results import Floats, Results, ResultsFile

Rows = list[dict[str, Any]]

POINTS = 120
"""Of a curve."""
_BINS = 40
"""Of a distribution, and of what is summed over a time."""


def times(part: Results, objective: str) -> Floats:
    """`ttft_s` or `tbt_s` of the requests that have one: no refused one, no gap of one token."""
    has_R = part.finished
    if objective == "tbt_s":
        has_R = has_R & (part.output_tokens > 1)
    found: Floats = getattr(part, objective)[has_R]
    return found


def distribution(runs: Sequence[Run], objective: str) -> Rows:
    """The share of requests whose time lies in each of some bins, equal in their logarithms."""
    edges = _ladder(runs, objective, _BINS + 1)
    rows = []
    for run in runs:
        counts = np.zeros(_BINS, np.int64)
        for part in run.results.parts():
            found = times(part, objective)
            counts += np.histogram(np.clip(found, edges[0], edges[-1]), edges)[0]
        shares = counts / max(1, counts.sum())
        rows += _rows(run, seconds=np.sqrt(edges[:-1] * edges[1:]), share=shares)
    return rows


def kept(runs: Sequence[Run], objective: str) -> Rows:
    """The share of all requests that would keep an objective, by its value."""
    seconds = _ladder(runs, objective, POINTS)
    rows = []
    for run in runs:
        shares = np.array(attainment(run.results, objective, seconds.tolist()))
        rows += _rows(run, seconds=seconds, share=shares)
    return rows


def objectives(runs: Sequence[Run], objective: str) -> Rows:
    """The objectives that runs have, each once."""
    found = {
        (slo.name, getattr(slo, objective))
        for run in runs
        for slo in (run.scenario.slo, *run.scenario.groups.values())
    }
    return [
        {"class": name, "seconds": seconds}
        for name, seconds in sorted(found)
        if np.isfinite(seconds)
    ]


def load(runs: Sequence[Run]) -> Rows:
    """Requests that wait for a first token, and those that have one and go on, over time."""
    rows = []
    for run in runs:
        at = np.linspace(0.0, _end_s(run.results), POINTS)
        counts = np.zeros((3, POINTS), np.int64)
        for part in run.results.parts():
            for count, times_R in zip(
                counts, (part.arrival_s, part.first_s, part.end_s), strict=True
            ):
                count += np.searchsorted(np.sort(times_R[part.finished]), at, side="right")
        arrived, first, ended = counts
        for phase, count in (("before the first token", arrived - first), ("after", first - ended)):
            rows += _rows(run, seconds=at, requests=count, phase=phase)
    return rows


def hits(runs: Sequence[Run]) -> Rows:
    """The share of prompt tokens that were not computed, by when requests arrived."""
    rows = []
    for run in runs:
        edges = np.linspace(0.0, _end_s(run.results), _BINS + 1)
        cached, asked = np.zeros((2, _BINS))
        for part in run.results.parts():
            arrival_R = part.arrival_s[part.finished]
            for count, tokens_R in ((cached, part.cached_tokens), (asked, part.input_tokens)):
                count += np.histogram(arrival_R, edges, weights=tokens_R[part.finished])[0]
        some = asked > 0
        rows += _rows(run, seconds=edges[:-1][some], share=cached[some] / asked[some])
    return rows


def tiers(runs: Sequence[Run]) -> Rows:
    """The share of prompt tokens that each tier had, the device among them."""
    return [
        {"run": run.name, "tier": name, "share": tier["hit_ratio"]}
        for run in runs
        for name, tier in run.figures["tiers"].items()
    ]


def busy(runs: Sequence[Run]) -> Rows:
    """The share of the time in which each group's instances worked."""
    return [
        {"run": run.name, "group": name, "share": one["busy_share"]}
        for run in runs
        for name, one in run.figures["instances"].items()
    ]


def refused(runs: Sequence[Run]) -> Rows:
    """How many requests were refused, by reason."""
    return [
        {"run": run.name, "reason": _short(reason), "requests": count}
        for run in runs
        for reason, count in Counter(run.figures["refused"]).most_common()
    ]


def _short(reason: str) -> str:
    return re.sub(r"\s+", " ", reason)[:60]


def _ladder(runs: Sequence[Run], objective: str, points: int) -> Floats:
    """Times from the least of all runs to the greatest, in equal ratios."""
    low, high = np.inf, 0.0
    for run in runs:
        for part in run.results.parts():
            found = times(part, objective)
            low = min(low, found[found > 0].min(initial=np.inf))
            high = max(high, found.max(initial=0.0))
    if not high:
        low, high = 0.01, 1.0
    ladder: NDArray[np.float64] = np.geomspace(low, max(high, low * 1.01), points)
    return ladder


def _end_s(results: Results | ResultsFile) -> float:
    return max(
        float(np.nanmax(part.end_s, initial=part.arrival_s.max(initial=1e-3)))
        for part in results.parts()
    )


def _rows(run: Run, *, phase: str | None = None, **columns: NDArray[Any]) -> Rows:
    names = list(columns)
    same = {"run": run.name} if phase is None else {"run": run.name, "phase": phase}
    return [
        same | {name: float(f"{value:.4g}") for name, value in zip(names, values, strict=True)}
        for values in zip(*columns.values(), strict=True)
    ]
