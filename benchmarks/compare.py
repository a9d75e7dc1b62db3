"""What got better and worse between two records of one case on one kind of processor.

Machines are noisy and differ, so lines are compared by their ratio to the limit or to a peer of the
same run where both records have one, and by their value only where they have none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

NOTABLE = 1.10  # times as good, or as bad


def changed_lines(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line for each measurement that changed by more than 10 %, came, or went."""
    before, after = _by_line(old), _by_line(new)
    lines = []
    for name in after:
        if name not in before:
            lines.append(f"new     {name}: {_told(after[name])}")
        else:
            lines += _changed(name, before[name], after[name])
    return [*lines, *(f"gone    {name}" for name in before if name not in after)]


def line_name(entry: Mapping[str, Any]) -> str:
    """Name and parameters of a measurement, as `record:` comments have them."""
    params = ", ".join(f"{key}={value}" for key, value in entry["params"].items())
    return f"{entry['name']}{{{params}}}" if params else str(entry["name"])


def _by_line(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {line_name(entry): entry for entry in record["measurements"]}


def _changed(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old["value"] is None or new["value"] is None:
        if old["value"] != new["value"]:
            yield f"{'worse' if new['value'] is None else 'better':7} {name}: {_told(new)}"
        return
    what, was, now = _compared(old, new)
    goal = f", target {_met(old)} -> {_met(new)}" if old["met"] != new["met"] else ""
    gain = _gain(was, now, higher=what != "value" or new["better"] == "higher")
    if 1 / NOTABLE <= gain <= NOTABLE and not goal:
        return
    word = "better" if gain > NOTABLE else "worse" if gain < 1 / NOTABLE else "target"
    unit = f" {new['unit']}" if what == "value" else ""
    yield f"{word:7} {name}: {what} {was:g} -> {now:g}{unit}{goal}"


def _compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, float, float]:
    """What both are judged by, and that of both."""
    if "of_limit" in old and "of_limit" in new:
        return f"of {new['limit']['name']}", old["of_limit"], new["of_limit"]
    ratios, theirs = new.get("of_peer", {}), old.get("of_peer", {})
    if common := [peer for peer in ratios if peer in theirs]:
        best = min(common, key=lambda peer: ratios[peer])
        return f"of {best}", theirs[best], ratios[best]
    return "value", old["value"], new["value"]


def _gain(was: float, now: float, higher: bool) -> float:
    """How many times as good it is now."""
    first, second = (now, was) if higher else (was, now)
    if min(first, second) > 0:
        return first / second
    # Such as an error of nothing, or a gain that was a loss.
    return 1.0 if first == second else float("inf") if first > second else 0.0


def _told(entry: Mapping[str, Any]) -> str:
    return "no result" if entry["value"] is None else f"{entry['value']:g} {entry['unit']}"


def _met(entry: Mapping[str, Any]) -> str:
    return {True: "met", False: "missed", None: "not judged"}[entry["met"]]
