"""What a simulation comes to: plain figures of its results, with stable names, for people and JSON.

Shapes: `R` requests.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.slo import SloClass
from inlay.sim.results import Floats, Results
from inlay.sim.scenario import Kind, Scenario

YEARS = 4.0
"""Over which hardware is taken to be paid off."""
_YEAR_S = 365.25 * 86400
_PERCENTILES = (50, 90, 99)
_NUMBER = re.compile(r"\d+(\.\d+)?")  # reasons that differ by nothing else are one


def figures(results: Results, scenario: Scenario, *, years: float = YEARS) -> dict[str, Any]:
    """All figures of one run.

    Returns:
        What JSON can hold. `refused` counts reasons, whose numbers are left out. Times are of
        requests that were not refused; `slo` is by class, where a refused request has missed its
        objectives. `usd_per_million_tokens` (prompt and output) is the hardware's price alone, over
        so many years of such load; None where one is not known.
    """
    done_R = results.finished
    outputs_R = results.output_tokens[done_R]
    span_s = results.duration_s
    tokens = int(results.input_tokens[done_R].sum()) + int(outputs_R.sum())
    tpot_R = (results.end_s - results.first_s)[done_R] / np.maximum(outputs_R - 1, 1)
    usd = _price_usd(scenario.kinds)
    per_token = span_s / (years * _YEAR_S) / tokens if tokens else None
    classes = _classes(results, scenario)
    return {
        "simulated": True,
        "policy": scenario.policy,
        "requests": len(done_R),
        "finished": int(done_R.sum()),
        "refused": dict(Counter(_NUMBER.sub("*", why) for why in results.refusals.values())),
        "duration_s": span_s,
        "ttft_s": spread(results.ttft_s[done_R]),
        "tbt_s": spread(results.tbt_s[done_R & (results.output_tokens > 1)]),
        "tpot_s": spread(tpot_R[outputs_R > 1]),
        "longest_gap_s": spread(results.longest_gap_s[done_R & (results.output_tokens > 1)]),
        "end_to_end_s": spread((results.end_s - results.arrival_s)[done_R]),
        "slo": classes,
        "goodput_per_s": sum(one["kept"] for one in classes.values()) / span_s if span_s else 0.0,
        "tokens_per_s": tokens / span_s if span_s else 0.0,
        "prompt_tokens": int(results.input_tokens[done_R].sum()),
        "output_tokens": int(outputs_R.sum()),
        "cached_tokens": int(results.cached_tokens[done_R].sum()),
        "hit_ratio": results.hit_ratio,
        "preemptions": int(results.preemptions[done_R].sum()),
        "copied_blocks": results.copied_blocks,
        "sent_bytes": float(results.sent_bytes.sum()),
        "tiers": _tiers(results),
        "lost_blocks": results.lost_blocks,
        "gpu_seconds": sum(kind.count * kind.gpus for kind in scenario.kinds) * span_s,
        "price_usd": usd,
        "usd_per_million_tokens": None
        if usd is None or per_token is None
        else 1e6 * usd * per_token,
        "instances": _instances(results, scenario.kinds, span_s),
    }


def spread(values: Floats) -> dict[str, float] | None:
    """Mean and percentiles; None of nothing."""
    if not len(values):
        return None
    found = np.percentile(values, _PERCENTILES).tolist()
    named = {f"p{name}": value for name, value in zip(_PERCENTILES, found, strict=True)}
    return {"mean": float(values.mean()), **named}


def attainment(results: Results, objective: str, seconds: Sequence[float]) -> list[float]:
    """The share of all requests that would keep one objective, `ttft_s` or `tbt_s`, by its value.

    Refused ones keep none.
    """
    times_R: NDArray[np.float64] = getattr(results, objective)
    ordered = np.sort(times_R[results.finished])
    kept = np.searchsorted(ordered, np.asarray(seconds), side="right")
    return [float(share) for share in kept / max(1, len(times_R))]


def _classes(results: Results, scenario: Scenario) -> dict[str, dict[str, float]]:
    """By class: requests, those that kept all objectives, and their share."""
    names = [scenario.groups.get(name, scenario.slo) for name in results.groups]
    found: dict[str, dict[str, float]] = {}
    for slo in dict.fromkeys(names):
        of_class = [number for number, one in enumerate(names) if one == slo]
        mine_R = np.isin(results.group, of_class)
        if mine_R.any():
            found[slo.name] = _kept(results, slo, mine_R)
    return found


def _kept(results: Results, slo: SloClass, mine_R: NDArray[np.bool_]) -> dict[str, float]:
    kept = int((results.meets(slo) & mine_R).sum())
    return {"requests": int(mine_R.sum()), "kept": kept, "share": kept / int(mine_R.sum())}


def _tiers(results: Results) -> dict[str, dict[str, float]]:
    """By tier, the nearest first: hits, and what was read there and written."""
    tokens = int(results.input_tokens[results.finished].sum())
    found = {}
    for name, hits in results.hit_tokens.items():
        one: dict[str, float] = {"hit_tokens": hits, "hit_ratio": hits / tokens if tokens else 0.0}
        if name in results.tier_bytes:
            read, written = results.tier_bytes[name].sum(axis=0).tolist()
            one |= {"read_bytes": read, "written_bytes": written}
        found[name] = one
    return found


def _price_usd(kinds: Sequence[Kind]) -> float | None:
    prices = [None if kind.price_usd is None else kind.count * kind.price_usd for kind in kinds]
    return None if None in prices else sum(price or 0.0 for price in prices)


def _instances(
    results: Results, kinds: Sequence[Kind], span_s: float
) -> dict[str, Mapping[str, Any]]:
    """By kind: what its instances did together."""
    found: dict[str, Mapping[str, Any]] = {}
    first = 0
    for kind in kinds:
        slots = slice(first, first := first + kind.count)
        found[kind.name] = {
            "role": kind.role,
            "count": kind.count,
            "gpus": kind.gpus,
            "assumed": kind.assumed,
            "busy_share": float(results.busy_s[slots].mean()) / span_s if span_s else 0.0,
            "steps": int(results.steps[slots].sum()),
            "sent_bytes": float(results.sent_bytes[slots].sum()),
        }
    return found
