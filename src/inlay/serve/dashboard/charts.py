"""Charts of the last minutes as SVG. Colours come from the style sheet by class name."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 300.0, 112.0
_LEFT, _TOP, _BOTTOM = 40.0, 8.0, 96.0
_FAR = 4.0
"""An objective so many times above everything else is named, not drawn."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line, or one layer of bars: a value per slot, the oldest first, None for none."""

    name: str
    values: Sequence[float | None]


def lines(drawn: Sequence[Line], *, slot_s: float, objective: float | None = None) -> str:
    """Durations over time, with an objective that they are to stay below.

    Args:
        drawn: of equal lengths, in seconds.
    """
    top = max((value for line in drawn for value in line.values if value is not None), default=0.0)
    if not top:
        return empty("No request in the last minutes.")
    near = objective is not None and objective <= _FAR * top
    scale = _Scale(max(top, objective or 0.0) if near else top, len(drawn[0].values))
    marks = [scale.grid(_milliseconds, slot_s)]
    if near and objective is not None:
        y = scale.y(objective)
        marks.append(f'<path class="objective" d="M{_LEFT} {y:.1f}H{WIDTH}"/>')
    for line in drawn:
        marks.append(f'<path class="line {line.name}" d="{_path(line.values, scale)}"/>')
    return _svg(marks, ", ".join(line.name for line in drawn))


def bars(layers: Sequence[Line], *, slot_s: float, merge: int = 3) -> str:
    """Counts over time, layers on each other.

    Args:
        merge: slots of one bar.
    """
    merged = [
        [
            sum(value or 0.0 for value in layer.values[at : at + merge])
            for at in range(0, len(layer.values), merge)
        ]
        for layer in layers
    ]
    num_bars = len(merged[0])
    top = max(sum(values[at] for values in merged) for at in range(num_bars))
    if not top:
        return empty("Nothing in the last minutes.")
    scale = _Scale(top, num_bars)
    width = (WIDTH - _LEFT) / num_bars
    marks = [scale.grid(lambda value: f"{value:,.0f}", slot_s * merge)]
    below = [0.0] * num_bars
    for layer, values in zip(layers, merged, strict=True):
        shapes = []
        for at, value in enumerate(values):
            if value > 0:
                y, base = scale.y(below[at] + value), scale.y(below[at])
                x = _LEFT + at * width
                shapes.append(f"M{x:.1f} {base:.1f}V{y:.1f}h{width * 0.82:.2f}V{base:.1f}z")
                below[at] += value
        marks.append(f'<path class="bar {layer.name}" d="{"".join(shapes)}"/>')
    return _svg(marks, ", ".join(layer.name for layer in layers))


def spark(values: Sequence[float]) -> str:
    """A small line without numbers."""
    top = max([*values, 1.0])
    step = 80.0 / max(1, len(values) - 1)
    points = " ".join(f"{at * step:.1f},{19 - 17 * v / top:.1f}" for at, v in enumerate(values))
    return (
        f'<svg class="spark" viewBox="0 0 80 20" preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline points="{points}"/></svg>'
    )


def empty(words: str) -> str:
    """In place of a chart."""
    return f'<p class="empty">{words}</p>'


class _Scale:
    """From values to places: `top` is rounded up to a number that reads well."""

    def __init__(self, top: float, num_values: int) -> None:
        power = 10.0 ** math.floor(math.log10(top))
        self.top = next(
            m * power for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if m * power >= top * 0.999
        )
        self._step = (WIDTH - _LEFT) / max(1, num_values - 1)

    def x(self, at: int) -> float:
        return _LEFT + at * self._step

    def y(self, value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * min(value / self.top, 1.0)

    def grid(self, label: Callable[[float], str], slot_s: float) -> str:
        """Lines at nothing, half and all of it, with labels; how long ago the left edge is."""
        parts = []
        for share in (0.0, 0.5, 1.0):
            y = self.y(share * self.top)
            parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH}"/>')
            parts.append(
                f'<text x="{_LEFT - 4}" y="{y + 3:.1f}" text-anchor="end">'
                f"{label(share * self.top)}</text>"
            )
        span_min = (WIDTH - _LEFT) / self._step * slot_s / 60
        parts.append(f'<text x="{_LEFT}" y="{HEIGHT - 3}">{span_min:.0f} min ago</text>')
        parts.append(f'<text x="{WIDTH}" y="{HEIGHT - 3}" text-anchor="end">now</text>')
        return "".join(parts)


def _milliseconds(value: float) -> str:
    if not value:
        return "0"
    if value >= 1:
        return f"{value:g} s"
    return f"{value * 1e3:.3g} ms"


def _path(values: Sequence[float | None], scale: _Scale) -> str:
    """A line with gaps; a value that stands alone is a dot."""
    parts, pen_down = [], False
    for at, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        command = "L" if pen_down else "M"
        parts.append(f"{command}{scale.x(at):.1f} {scale.y(value):.1f}")
        if not pen_down:
            parts.append("h.01")
        pen_down = True
    return "".join(parts)


def _svg(marks: Sequence[str], label: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{label}">{"".join(marks)}</svg>'
    )
