"""Plots of runs side by side, as specifications of Vega-Lite.

Source: Vega-Lite, "A Grammar of Interactive Graphics" (Satyanarayan et al., 2017).
"""

from collections.abc import Sequence
from typing import Any

from inlay.sim.report import rows
from inlay.sim.report.run import Run

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
VERSION = "6.4"
"""Of Vega-Lite, as vl-convert counts."""
_WIDTH, _HEIGHT = 430, 220
_COLORS = ("#2f6db3", "#d9822b", "#3a9a6e", "#b0476d", "#7a5cc0", "#7d8590")
CONFIG: Spec = {
    "font": "Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "legend": {"orient": "top", "labelLimit": 300},
    "axis": {"gridColor": "#e6e8eb", "domainColor": "#98a1ab", "tickColor": "#98a1ab"},
    "title": {"anchor": "start", "fontSize": 14, "subtitleColor": "#5b6570"},
}


def charts(runs: Sequence[Run]) -> list[Spec]:
    """What is worth a plot; of tiers and of refusals only where there are some.

    In a page curves can be moved and enlarged, points say their values, and runs of the legend that
    are clicked stand out.
    """
    names = [run.name for run in runs]
    made = [
        _curve(
            "Time to first token", "share of requests", names, rows.distribution(runs, "ttft_s")
        ),
        _curve(
            "Time between tokens, worst tenth",
            "share of requests",
            names,
            rows.distribution(runs, "tbt_s"),
        ),
        _kept("Requests that would keep a time to first token of", names, runs, "ttft_s"),
        _kept("Requests that would keep a time between tokens of", names, runs, "tbt_s"),
        _over_time("Requests in the cluster", names, rows.load(runs), "requests"),
        _over_time("Prompt tokens that were not computed", names, rows.hits(runs), "share"),
        _bars("Time in which instances worked", names, rows.busy(runs), "group", "share"),
    ]
    loaded = rows.tiers(runs)
    if any(row["share"] for row in loaded if row["tier"] != "device"):
        made.append(
            _bars("Where prompt tokens were found", names, loaded, "tier", "share", "tokens")
        )
    if refusals := rows.refused(runs):
        made.append(_bars("Refused requests", names, refusals, "reason", "requests"))
    return made


def together(runs: Sequence[Run]) -> Spec:
    """All plots as one, in two columns."""
    return {
        "$schema": SCHEMA,
        "config": CONFIG,
        "background": "white",
        "padding": 12,
        "columns": 2,
        "concat": charts(runs),
        "resolve": {"scale": {"x": "independent", "y": "independent", "color": "shared"}},
    }


def _curve(title: str, what: str, names: list[str], data: rows.Rows) -> Spec:
    """Shares by time, on a logarithmic axis."""
    return _plot(
        title,
        data,
        {"type": "line", "interpolate": "monotone", "point": {"size": 12}},
        names,
        x=_axis("seconds", "s", log=True),
        y=_axis("share", what),
        moves=True,
    )


def _kept(title: str, names: list[str], runs: Sequence[Run], objective: str) -> Spec:
    """A curve of attainment, and the objectives that there are."""
    curve = _curve(title, "share of requests", names, rows.kept(runs, objective))
    asked = rows.objectives(runs, objective)
    if not asked:
        return curve
    line: Spec = {
        "data": {"values": asked},
        "mark": {"type": "rule", "strokeDash": [4, 3], "color": "#5b6570"},
        "encoding": {
            "x": {"field": "seconds", "type": "quantitative"},
            "tooltip": [{"field": "class"}, {"field": "seconds"}],
        },
    }
    shared = {name: curve.pop(name) for name in ("title", "width", "height")}
    return shared | {"layer": [curve, line]}


def _over_time(title: str, names: list[str], data: rows.Rows, what: str) -> Spec:
    plot = _plot(
        title,
        data,
        {"type": "line"},
        names,
        x=_axis("seconds", "s since the start"),
        y=_axis(what, what.replace("share", "share of tokens")),
        moves=True,
    )
    if any("phase" in row for row in data):
        plot["encoding"]["strokeDash"] = {"field": "phase", "title": None}
        plot["encoding"]["tooltip"].append({"field": "phase"})
    return plot


def _bars(
    title: str, names: list[str], data: rows.Rows, by: str, what: str, of: str = "the time"
) -> Spec:
    plot = _plot(
        title,
        data,
        {"type": "bar"},
        names,
        x=_axis(what, what.replace("share", f"share of {of}")),
        y={"field": by, "type": "nominal", "title": None, "axis": {"labelLimit": 220}},
    )
    plot["encoding"]["yOffset"] = {"field": "run", "type": "nominal", "scale": {"domain": names}}
    return plot


def _plot(
    title: str,
    data: rows.Rows,
    mark: Spec,
    names: list[str],
    *,
    x: Spec,
    y: Spec,
    moves: bool = False,
) -> Spec:
    colors = {"domain": names, "range": [_COLORS[i % len(_COLORS)] for i in range(len(names))]}
    # Names of parameters must differ between plots that are drawn as one.
    apart = "".join(letter for letter in title if letter.isalpha())
    params: list[Spec] = [
        {"name": f"run{apart}", "select": {"type": "point", "fields": ["run"]}, "bind": "legend"}
    ]
    if moves:
        params.append({"name": f"zoom{apart}", "select": "interval", "bind": "scales"})
    return {
        "title": title,
        "width": _WIDTH,
        "height": _HEIGHT,
        "data": {"values": data},
        "params": params,
        "mark": mark | {"tooltip": True},
        "encoding": {
            "x": x,
            "y": y,
            "color": {"field": "run", "type": "nominal", "title": None, "scale": colors},
            "opacity": {"condition": {"param": f"run{apart}", "value": 1}, "value": 0.12},
            "tooltip": [{"field": "run"}, {"field": x["field"]}, {"field": y["field"]}],
        },
    }


def _axis(field: str, title: str, *, log: bool = False) -> Spec:
    axis: Spec = {"field": field, "type": "quantitative", "title": title}
    if field == "share":
        axis["axis"] = {"format": "~%"}
    if log:
        axis["scale"] = {"type": "log", "nice": False}
        axis["axis"] = {"format": "~g", "tickCount": 6}
    return axis
