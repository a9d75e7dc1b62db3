"""Figures of simulations for people; `inlay.sim.figures` has them for programs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from inlay.core.units import format_bytes

Figures = Mapping[str, Any]

_ALL = ("mean", "p50", "p90", "p99")
_TIMES = (
    ("TTFT", "ttft_s", _ALL),
    ("TBT (worst tenth)", "tbt_s", _ALL),
    ("each gap (ITL)", "itl_s", ("mean", "p50", "p90", "p99")),
    ("time per token", "tpot_s", ("mean", "p99")),
    ("longest gap", "longest_gap_s", ("p50", "p99")),
    ("end to end", "end_to_end_s", ("mean", "p99")),
)
_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("policy", lambda run: run["policy"]),
    ("requests", lambda run: f"{run['requests']:,}"),
    ("refused", lambda run: f"{run['requests'] - run['finished']:,}"),
    ("duration", lambda run: _seconds(run["duration_s"])),
    ("tokens/s", lambda run: f"{run['tokens_per_s']:,.0f}"),
    ("prompt tokens cached", lambda run: f"{run['hit_ratio']:.1%}"),
    ("from tiers", lambda run: _tiers(run["tiers"])),
    ("preemptions", lambda run: f"{run['preemptions']:,}"),
    ("role changes", lambda run: f"{run['role_changes']:,}"),
    ("sent", lambda run: format_bytes(run["sent_bytes"])),
    ("goodput", lambda run: f"{run['goodput_per_s']:.2f}/s"),
    ("GPU hours", lambda run: f"{run['gpu_seconds'] / 3600:,.1f}"),
    ("USD, hardware", lambda run: _dollars(run["price_usd"])),
    ("USD per million tokens", lambda run: _dollars(run["usd_per_million_tokens"])),
)


def print_figures(console: Console, runs: Sequence[Figures]) -> None:
    """Write figures of some runs side by side."""
    table = Table(title="simulated", title_justify="left", box=None, pad_edge=False)
    table.add_column("", style="dim")
    for run in runs:
        table.add_column(run["run"], justify="right")
    for row in table_rows(runs):
        table.add_row(*row)
    console.print(table)
    for run in runs:
        for reason, count in run["refused"].items():
            console.print(f"{run['run']} refused {count:,}: {reason}", style="dim")
    if any(one["assumed"] for run in runs for one in run["instances"].values()):
        console.print(
            "What kernels reach of this hardware is assumed, nobody has measured it: "
            "ratios are worth more than times.",
            style="dim",
        )


def table_rows(runs: Sequence[Figures]) -> list[list[str]]:
    """Rows of a table: what it is, then how much of it each run has."""
    rows = [[name, *map(told, runs)] for name, told in _ROWS]
    for name, key, parts in _TIMES:
        for part in parts:
            found = [run[key] for run in runs]
            cells = ["-" if one is None else _seconds(one[part]) for one in found]
            rows.append([f"{name} {part}", *cells])
    for name in _all_of(runs, "slo"):
        shares = [run["slo"].get(name) for run in runs]
        cells = ["-" if one is None else f"{one['share']:.1%}" for one in shares]
        rows.append([f"objectives of {name} kept", *cells])
    for name in _all_of(runs, "instances"):
        groups = [run["instances"].get(name) for run in runs]
        cells = ["-" if one is None else f"{one['busy_share']:.0%}" for one in groups]
        rows.append([f"{name} busy", *cells])
    return rows


def _all_of(runs: Sequence[Figures], key: str) -> list[str]:
    """Names that any of the runs has there, each once."""
    return list(dict.fromkeys(name for run in runs for name in run[key]))


def _tiers(tiers: Mapping[str, Mapping[str, float]]) -> str:
    """What was loaded of the prompts' tokens, from where something was."""
    found = [
        f"{name} {tier['hit_ratio']:.1%}"
        for name, tier in tiers.items()
        if name != "device" and tier["hit_tokens"]
    ]
    return ", ".join(found) or "-"


def _seconds(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def _dollars(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"
