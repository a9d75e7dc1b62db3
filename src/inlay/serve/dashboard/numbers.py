"""Numbers with their units, as short as they can be read."""

from inlay.core.units import format_bytes
from inlay.serve.page.figures import seconds

NONE = '<span class="quiet">–</span>'


def duration(value: float | None) -> str:
    """`41 ms`, `1.32 s`, or a dash."""
    return NONE if value is None else seconds(value)


def count(value: float) -> str:
    """`999`, `12,340`, `1.2 M`."""
    if value >= 1e6:
        return f"{value / 1e6:.1f} M"
    return f"{value:,.0f}"


def rate(value: float | None, unit: str) -> str:
    """`0.4 /s`, `12 /s`, `1,250 tok/s`, or a dash."""
    if value is None:
        return NONE
    shown = f"{value:.1f}" if 0 < value < 10 else f"{value:,.0f}"
    return f"{shown} <small>{unit}</small>"


def share(part: float, whole: float) -> str:
    """`37 %`, `< 1 %`, or a dash of nothing."""
    if whole <= 0:
        return NONE
    percent = 100 * part / whole
    return "&lt; 1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def size(size_bytes: float) -> str:
    """`1.5 GiB`."""
    return format_bytes(size_bytes)


def ago(age_s: float) -> str:
    """`now`, `12 s`, `3 min`, `2 h`."""
    if age_s < 1:
        return "now"
    if age_s < 60:
        return f"{age_s:.0f} s"
    return f"{age_s / 60:.0f} min" if age_s < 3600 else f"{age_s / 3600:.0f} h"
