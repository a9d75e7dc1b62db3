"""What a simulation comes to: plain figures of its results, with stable names, for people and JSON.

Shapes: `R` requests.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.sim.gaps import NUM_BINS, gap_percentiles
from inlay.sim.percentiles import ROUNDS, Percentiles
from inlay.sim.results import Floats, Results, ResultsFile
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.tier import TIERS

YEARS = 4.0
"""Over which hardware is taken to be paid off."""
_YEAR_S = 365.25 * 86400
_PERCENTILES = (50, 90, 99)
_NUMBER = re.compile(r"\d+(\.\d+)?")  # reasons that differ by nothing else are one


def figures(
    results: Results | ResultsFile, scenario: Scenario, *, years: float = YEARS
) -> dict[str, Any]:
    """All figures of one run.

    Returns:
        What JSON can hold. `refused` counts reasons, whose numbers are left out. Times are of
        requests that were not refused; `slo` is by class, where a refused request has missed its
        objectives. `usd_per_million_tokens` (prompt and output) is the hardware's price alone, over
        so many years of such load; None where one is not known.

    Cost: of results in a file, it is read five times.
    """
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    classes: dict[str, Counter[str]] = {}
    instances = np.zeros((3, sum(kind.count for kind in scenario.kinds)))
    hit_tokens: Counter[str] = Counter()
    gap_counts, gaps_s = np.zeros(NUM_BINS, np.int64), 0.0
    tier_bytes = np.zeros((len(TIERS), 2))
    first_s, last_s = np.inf, 0.0
    for part in results.parts():
        counts.update(_counts(part))
        refused.update(_NUMBER.sub("*", why) for why in part.refusals.values())
        for name, count in _classes(part, scenario).items():
            classes.setdefault(name, Counter()).update(count)
        instances += part.busy_s, part.steps, part.sent_bytes
        hit_tokens.update(part.hit_tokens)
        tier_bytes += part.tier_bytes.sum(axis=0)
        gap_counts += part.gap_counts
        gaps_s += float((part.end_s - part.first_s)[part.finished].sum())
        first_s = min(first_s, float(part.arrival_s.min(initial=np.inf)))
        last_s = max(last_s, float(part.end_s[part.finished].max(initial=0.0)))
    times = spreads(results, _TIMES)
    span_s = last_s - first_s if counts["finished"] else 0.0
    tokens = counts["prompt_tokens"] + counts["output_tokens"]
    usd = _price_usd(scenario.kinds)
    per_token = span_s / (years * _YEAR_S) / tokens if tokens else None
    kept = sum(one["kept"] for one in classes.values())
    return {
        "simulated": True,
        "policy": scenario.policy,
        "requests": counts["requests"],
        "finished": counts["finished"],
        "refused": dict(refused),
        "duration_s": span_s,
        **times,
        "itl_s": _gaps(gap_counts, gaps_s),
        "slo": {
            name: {**one, "share": one["kept"] / one["requests"]} for name, one in classes.items()
        },
        "goodput_per_s": kept / span_s if span_s else 0.0,
        "tokens_per_s": tokens / span_s if span_s else 0.0,
        "prompt_tokens": counts["prompt_tokens"],
        "output_tokens": counts["output_tokens"],
        "cached_tokens": counts["cached_tokens"],
        "hit_ratio": counts["cached_tokens"] / counts["prompt_tokens"]
        if counts["prompt_tokens"]
        else 0.0,
        "preemptions": counts["preemptions"],
        "role_changes": counts["role_changes"],
        "copied_blocks": counts["copied_blocks"],
        "sent_bytes": float(instances[2].sum()),
        "tiers": _tiers(hit_tokens, tier_bytes, counts["prompt_tokens"]),
        "lost_blocks": counts["lost_blocks"],
        "gpu_seconds": sum(kind.count * kind.gpus for kind in scenario.kinds) * span_s,
        "price_usd": usd,
        "usd_per_million_tokens": None
        if usd is None or per_token is None
        else 1e6 * usd * per_token,
        "instances": _instances(instances, scenario.kinds, span_s),
    }


def _counts(part: Results) -> dict[str, int]:
    """What is summed over requests."""
    done_R = part.finished
    return {
        "requests": len(done_R),
        "finished": int(done_R.sum()),
        "prompt_tokens": int(part.input_tokens[done_R].sum()),
        "output_tokens": int(part.output_tokens[done_R].sum()),
        "cached_tokens": int(part.cached_tokens[done_R].sum()),
        "preemptions": int(part.preemptions[done_R].sum()),
        "copied_blocks": part.copied_blocks,
        "lost_blocks": part.lost_blocks,
        "role_changes": part.role_changes,
    }


def _gaps(gap_counts: NDArray[np.int64], gaps_s: float) -> dict[str, float] | None:
    """Mean and percentiles of all gaps, each of which counts once; `gaps_s` is their sum."""
    found = gap_percentiles(gap_counts, _PERCENTILES)
    if found is None:
        return None
    named = zip(_PERCENTILES, found, strict=True)
    return {"mean": gaps_s / int(gap_counts.sum()), **{f"p{name}": value for name, value in named}}


def _of_gaps(part: Results, times_R: Floats) -> Floats:
    """Those of requests that have a gap between tokens."""
    return times_R[part.finished & (part.output_tokens > 1)]


_TIMES: Mapping[str, Callable[[Results], Floats]] = {
    "ttft_s": lambda part: part.ttft_s[part.finished],
    "tbt_s": lambda part: _of_gaps(part, part.tbt_s),
    "tpot_s": lambda part: _of_gaps(
        part, (part.end_s - part.first_s) / np.maximum(part.output_tokens - 1, 1)
    ),
    "longest_gap_s": lambda part: _of_gaps(part, part.longest_gap_s),
    "end_to_end_s": lambda part: (part.end_s - part.arrival_s)[part.finished],
}
"""Times that have a mean and percentiles, by name."""


def spreads(
    results: Results | ResultsFile, times: Mapping[str, Callable[[Results], Floats]]
) -> dict[str, dict[str, float] | None]:
    """Mean and percentiles of times, by their names; None of nothing."""
    columns = {name: Percentiles(_PERCENTILES) for name in times}
    for _ in range(ROUNDS):
        for part in results.parts():
            for name, column in columns.items():
                column.add(times[name](part))
        for column in columns.values():
            column.settle()
    return {name: _spread(column) for name, column in columns.items()}


def _spread(column: Percentiles) -> dict[str, float] | None:
    if column.found is None:
        return None
    named = zip(_PERCENTILES, column.found.tolist(), strict=True)
    return {"mean": column.mean, **{f"p{name}": value for name, value in named}}


def attainment(
    results: Results | ResultsFile, objective: str, seconds: Sequence[float]
) -> list[float]:
    """The share of all requests that would keep one objective, `ttft_s` or `tbt_s`, by its value.

    Refused ones keep none.
    """
    kept = np.zeros(len(seconds), np.int64)
    requests = 0
    for part in results.parts():
        times_R: NDArray[np.float64] = getattr(part, objective)
        ordered = np.sort(times_R[part.finished])
        kept += np.searchsorted(ordered, np.asarray(seconds), side="right")
        requests += len(times_R)
    return [float(share) for share in kept / max(1, requests)]


def _classes(part: Results, scenario: Scenario) -> dict[str, dict[str, int]]:
    """By class: requests, and those that kept all objectives."""
    names = [scenario.groups.get(name, scenario.slo) for name in part.groups]
    found: dict[str, dict[str, int]] = {}
    for slo in dict.fromkeys(names):
        of_class = [number for number, one in enumerate(names) if one == slo]
        mine_R = np.isin(part.group, of_class)
        if mine_R.any():
            kept = int((part.meets(slo) & mine_R).sum())
            found[slo.name] = {"requests": int(mine_R.sum()), "kept": kept}
    return found


def _tiers(
    hit_tokens: Mapping[str, int], tier_bytes: Floats, prompt_tokens: int
) -> dict[str, dict[str, float]]:
    """By tier, the nearest first: hits, and what was read there and written."""
    found: dict[str, dict[str, float]] = {
        name: {"hit_tokens": hits, "hit_ratio": hits / prompt_tokens if prompt_tokens else 0.0}
        for name, hits in hit_tokens.items()
    }
    for name, (read, written) in zip(TIERS, tier_bytes.tolist(), strict=True):
        found[name] |= {"read_bytes": read, "written_bytes": written}
    return found


def _price_usd(kinds: Sequence[Kind]) -> float | None:
    prices = [None if kind.price_usd is None else kind.count * kind.price_usd for kind in kinds]
    return None if None in prices else sum(price or 0.0 for price in prices)


def _instances(
    done: NDArray[np.float64], kinds: Sequence[Kind], span_s: float
) -> dict[str, Mapping[str, Any]]:
    """By kind: what its instances did together, of rows with seconds, steps and bytes."""
    found: dict[str, Mapping[str, Any]] = {}
    first = 0
    for kind in kinds:
        busy_s, steps, sent_bytes = done[:, first : (first := first + kind.count)]
        found[kind.name] = {
            "role": kind.role,
            "count": kind.count,
            "gpus": kind.gpus,
            "assumed": kind.assumed,
            "busy_share": float(busy_s.mean()) / span_s if span_s else 0.0,
            "steps": int(steps.sum()),
            "sent_bytes": float(sent_bytes.sum()),
        }
    return found
