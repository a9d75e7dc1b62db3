"""Plans of fleets for people; `inlay.sim.planner.record` has them for programs."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

Record = Mapping[str, Any]

_MOST_LOST = 8
_TITLES = {
    "cost": "Cheapest fleets that keep the objectives of",
    "throughput": "Fleets within the budget that keep the objectives at the highest rates, of",
    "ttft": "Fleets within the budget with the earliest first tokens that keep the objectives of",
}


def print_fleets(console: Console, found: Record) -> None:
    """Write what was found."""
    plans = found["plans"]
    if plans:
        table = _table(
            f"{_TITLES[found['optimize']]} {found['attain']:.0%} (simulated)",
            ("fleet", "GPUs", "USD", "rate", "kept", "TTFT p90", "TBT p90", "USD/M tokens"),
        )
        for plan in plans:
            table.add_row(
                plan["fleet"],
                f"{plan['gpus']}",
                f"{plan['price_usd']:,.0f}",
                f"{plan['rate']:.2f} x",
                f"{plan['kept']:.1%}",
                _seconds(plan["ttft_s"]),
                _seconds(plan["tbt_s"]),
                f"{plan['usd_per_million_tokens']:.3f}",
            )
        console.print(table)
        _print_single(console, plans, found["one_kind_at_its_price"])
    if found["neighbours"]:
        table = _table(
            "The first one with one instance, or parts that hold blocks, more or less",
            ("fleet", "GPUs", "TB", "USD", "kept", "which is", "TTFT p90", "TBT p90"),
        )
        for near in found["neighbours"]:
            table.add_row(
                near["fleet"],
                f"{near['more_gpus']:+d}",
                f"{near['more_tb']:+.1f}",
                f"{near['more_usd']:+,.0f}",
                f"{near['kept']:.1%}",
                _each(near),
                _seconds(near["ttft_s"]),
                _seconds(near["tbt_s"]),
            )
        console.print(table)
    if found["lost"]:
        table = _table("Others, and why they lost", ("fleet", "USD, at least", "why"))
        for loss in found["lost"][:_MOST_LOST]:
            table.add_row(loss["fleet"], f"{loss['price_usd']:,.0f}", loss["reason"])
        console.print(table)
        if len(found["lost"]) > _MOST_LOST:
            console.print(
                f"and {len(found['lost']) - _MOST_LOST} that would cost more (--json has all)",
                style="dim",
            )
    if found["unfit"]:
        table = _table("Instances that no number of is enough", ("instance", "for", "why"))
        for one in found["unfit"]:
            table.add_row(one["instance"], one["role"], one["reason"])
        console.print(table)
    console.print(Text("Assumptions", style="bold"))
    for line in found["assumptions"]:
        console.print(Text(f"  {line}", style="dim"))


def _print_single(console: Console, plans: list[Record], rival: Record | None) -> None:
    """How the cheapest stands to the cheapest of one kind of GPU."""
    best = plans[0]
    single = next((plan for plan in plans if plan["one_kind"]), None)
    if single is None or rival is None:
        return
    saved = 1 - best["price_usd"] / single["price_usd"]
    console.print(
        f"With one kind of GPU the cheapest costs {single['price_usd']:,.0f} USD: mixed hardware "
        f"saves {saved:.0%}. What they buy for {rival['price_usd']:,.0f} USD, {rival['fleet']}, "
        f"keeps {rival['kept']:.1%}."
    )


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _each(near: Record) -> str:
    """What a GPU is worth, or where these are as many, a TB."""
    points = 100 * near["more_kept"]
    if near["more_gpus"]:
        return f"{points / abs(near['more_gpus']):+.2f} points per GPU"
    return f"{points / abs(near['more_tb']):+.2f} points per TB"


def _seconds(spread: Mapping[str, float] | None) -> str:
    if spread is None:
        return "-"
    value = spread["p90"]
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.0f} ms"
