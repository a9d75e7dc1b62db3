"""What is in a trace."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from inlay.sim.known_names import KnownNames
from inlay.sim.trace import Trace

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


def survey(parts: Iterable[Trace], known: KnownNames) -> dict[str, Any]:
    """Figures of a trace in parts, of which there is at least one.

    Args:
        known: was told of each part before it came here.
    """
    sums: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    longest = np.zeros(2, np.int64)
    duration_s = 0.0
    for part in parts:
        sums.update(
            requests=len(part),
            inputs=int(part.input_tokens.sum()),
            outputs=int(part.output_tokens.sum()),
        )
        counts = np.bincount(part.group, minlength=len(part.groups)).tolist()
        groups.update(dict(zip(part.groups, counts, strict=True)))
        longest = np.maximum(longest, (part.input_tokens.max(), part.output_tokens.max()))
        duration_s = part.duration_s
    requests = sums["requests"]
    return {
        "requests": requests,
        "duration_s": duration_s,
        "requests_per_s": requests / duration_s if duration_s else None,
        "mean_input_tokens": sums["inputs"] / requests,
        "max_input_tokens": int(longest[0]),
        "mean_output_tokens": sums["outputs"] / requests,
        "max_output_tokens": int(longest[1]),
        "groups": dict(groups),
        "different_blocks": known.blocks - known.again,
        "reusable_share": known.again / known.blocks,
    }


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
