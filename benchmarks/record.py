"""From samples to the JSON record: medians, ratios with intervals, whether targets are met."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.case import Measurement
from benchmarks.stats import median, median_interval, percentile
from benchmarks.triples import Samples

RESULTS = Path(__file__).parent / "results"


def measurement_record(declared: Measurement, samples: Samples) -> dict[str, Any]:
    """One entry of a record's `measurements`.

    Ratios are medians of the per-triple ratios, turned so that more is better for us: ours over
    the other where higher is better, the other over ours where lower is.
    """
    entry: dict[str, Any] = {
        "name": samples.name,
        "params": dict(samples.params),
        "unit": declared.unit,
        "better": declared.better,
    }
    if not samples.values:
        entry |= {"value": None, "dropped": samples.dropped, "met": None}
        return entry | {"no_result": "more than half of the triples were dropped: noisy machine"}
    entry |= {
        "value": median(samples.values),
        "p10": percentile(samples.values, 10),
        "p90": percentile(samples.values, 90),
        "repeats": len(samples.values),
        "dropped": samples.dropped,
    }
    if samples.limit:
        name, limits = samples.limit
        if isinstance(limits, int | float):
            limits = [limits] * len(samples.values)
        entry["limit"] = {"name": name, "value": median(limits)}
        entry["of_limit"], entry["of_limit_ci"] = _ratio(samples.values, limits, declared)
    if samples.peers:
        ratios = {
            peer: _ratio(samples.values, theirs, declared)
            for peer, theirs in sorted(samples.peers.items())
        }
        entry["peers"] = {peer: median(samples.peers[peer]) for peer in ratios}
        entry["of_peer"] = {peer: ratio for peer, (ratio, _) in ratios.items()}
        entry["of_peer_ci"] = {peer: interval for peer, (_, interval) in ratios.items()}
    if samples.seeds:
        entry["seeds"] = list(samples.seeds)
    if samples.simulated:
        entry["simulated"] = True
    if declared.target:
        entry["target"] = dict(declared.target)
    entry["met"] = target_met(declared.target, entry)
    return {key: item if key == "target" else _rounded(item) for key, item in entry.items()}


def target_met(target: Mapping[str, Any], entry: Mapping[str, Any]) -> bool | None:
    """Whether a measurement reaches every part of its target; None where it cannot be judged.

    `of_limit`, `of_best_peer`: the ratio, against the strongest peer. `of_peer`: the ratios against
    the peers whose labels begin with the names given. `never_behind`: no peer's
    ratio has a median below 0.97 or an interval that ends below 1. `of_best_peer_below_80`: as
    `of_best_peer`, but asked for only where that peer stays below 80 % of the limit. `at_least`,
    `at_most`: the value itself.
    """
    answers = [_part_met(name, wanted, entry) for name, wanted in target.items()]
    if not answers or None in answers:
        return False if False in answers else None
    return all(answers)


def _part_met(name: str, wanted: Any, entry: Mapping[str, Any]) -> bool | None:
    if name == "at_least":
        return bool(entry["value"] >= wanted)
    if name == "at_most":
        return bool(entry["value"] <= wanted)
    if name == "of_limit":
        return bool(entry["of_limit"] >= wanted) if "of_limit" in entry else None
    if "of_peer" not in entry:
        return None
    if name == "of_peer":
        found = {
            peer: [ratio for label, ratio in entry["of_peer"].items() if label.startswith(peer)]
            for peer in wanted
        }
        if not all(found.values()):
            return None
        return all(min(ratios) >= wanted[peer] for peer, ratios in found.items())
    of_best_peer = min(entry["of_peer"].values())
    if name == "of_best_peer":
        return bool(of_best_peer >= wanted)
    if name == "of_best_peer_below_80":
        if "of_limit" not in entry:
            return None
        return bool(entry["of_limit"] / of_best_peer >= 0.8 or of_best_peer >= wanted)
    intervals = entry["of_peer_ci"]
    return all(
        ratio >= 0.97 and intervals[peer][1] >= 1.0 for peer, ratio in entry["of_peer"].items()
    )


def _ratio(
    ours: Sequence[float], other: Sequence[float], declared: Measurement
) -> tuple[float, list[float]]:
    pairs = list(zip(ours, other, strict=True))
    higher = declared.better == "higher"
    ratios = [mine / theirs if higher else theirs / mine for mine, theirs in pairs]
    return median(ratios), list(median_interval(ratios))


def _rounded(value: Any) -> Any:
    """Five significant digits: more would be noise in a record that people read and diff."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def record_file(case: str, kind: str) -> Path:
    """Where the accepted record of a case (area/case) on a kind of processor is."""
    return RESULTS / case / f"{kind}.json"


def read_record(case: str, kind: str) -> dict[str, Any] | None:
    """The accepted record of a case on a kind of processor; None if there is none."""
    file = record_file(case, kind)
    return json.loads(file.read_text()) if file.is_file() else None


def accepted_records() -> list[dict[str, Any]]:
    """All accepted records, by case and kind."""
    return [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*/*/*.json"))]


def write_record(record: Mapping[str, Any], file: Path) -> None:
    """Write a record as people read it: indented, keys in the order given."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def find_measurement(record: Mapping[str, Any], name: str, params: Mapping[str, str]) -> Any:
    """The entry with this name whose parameters agree with `params` (given as text).

    Parameters that `params` leaves out may have any value, as long as one entry remains.

    Raises:
        LookupError: none fits, or several do.
    """
    fitting = [
        entry
        for entry in record["measurements"]
        if entry["name"] == name
        and all(str(entry["params"].get(key)) == value for key, value in params.items())
    ]
    if len(fitting) != 1:
        raise LookupError(f"{record['case']} has {len(fitting)} entries {name} {dict(params)}")
    return fitting[0]
