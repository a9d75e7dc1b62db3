"""What is in a trace, for people; `inlay.sim.survey` has it for programs."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

_ROWS = (
    ("requests", "{:,}", "requests"),
    ("duration", "{:,.0f} s", "duration_s"),
    ("requests per second", "{:.3g}", "requests_per_s"),
    ("mean prompt", "{:,.0f} tokens", "mean_input_tokens"),
    ("longest prompt", "{:,} tokens", "max_input_tokens"),
    ("mean answer", "{:,.0f} tokens", "mean_output_tokens"),
    ("longest answer", "{:,} tokens", "max_output_tokens"),
    ("different blocks", "{:,}", "different_blocks"),
    ("blocks seen before", "{:.1%}", "reusable_share"),
)


def print_survey(console: Console, file: str, found: Mapping[str, Any]) -> None:
    """Write what was found for people."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("", style="dim")
    table.add_column("", justify="right")
    for name, form, key in _ROWS:
        table.add_row(name, "-" if found[key] is None else form.format(found[key]))
    if len(found["groups"]) > 1:
        for group, count in found["groups"].items():
            table.add_row(f"of group {group}", f"{count:,}")
    console.print(file, soft_wrap=True, markup=False, highlight=False)
    console.print(table)
