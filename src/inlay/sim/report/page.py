"""A report as one HTML page, which needs no network, and as one picture."""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from inlay.core.errors import ConfigError
from inlay.sim.report import charts, drawing
from inlay.sim.report.run import Run

_DRAWN: Mapping[str, Callable[[charts.Spec], bytes]] = {".png": drawing.png, ".svg": drawing.svg}

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
body {{ font: 15px/1.5 Helvetica, Arial, sans-serif; color: #1f2328; margin: 2rem auto;
  max-width: 1180px; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; margin: 0; }}
p {{ color: #5b6570; margin: .2rem 0 1.2rem; }}
table {{ border-collapse: collapse; margin-bottom: 1.5rem; }}
th, td {{ padding: .15rem 1.2rem .15rem 0; text-align: right; border-bottom: 1px solid #e6e8eb; }}
th:first-child {{ text-align: left; font-weight: normal; color: #5b6570; }}
#plots {{ display: flex; flex-wrap: wrap; gap: 1.5rem 1rem; }}
</style>
<script>{script}</script>
</head>
<body>
<h1>{title}</h1>
<p>Simulated: nothing of this was measured. {note}</p>
<table>
{table}
</table>
<div id="plots"></div>
<script>
const plots = {plots};
for (const plot of plots) {{
  const place = document.getElementById("plots").appendChild(document.createElement("div"));
  vegaEmbed(place, plot, {{renderer: "svg", actions: {{export: true, source: false,
    compiled: false, editor: false}}}}).catch(console.error);
}}
</script>
</body>
</html>
"""


def write_page(file: Path, title: str, runs: Sequence[Run], table: Sequence[Sequence[str]]) -> None:
    """Write a page with plots that can be moved and asked for values; about 1 MB.

    Args:
        table: figures, a row of cells each: what it is, then one of each run.

    Raises:
        ConfigError: what draws is not installed.
        OSError: the file cannot be written.

    Cost: some seconds, and about 20 kB for each run.
    """
    plots = [
        {"$schema": charts.SCHEMA, "config": charts.CONFIG, **one} for one in charts.charts(runs)
    ]
    lines = [("", *(run.name for run in runs)), *table]
    assumed = any(kind.assumed for run in runs for kind in run.scenario.kinds)
    file.write_text(
        _PAGE.format(
            title=escape(title),
            script=drawing.script(),
            note="What kernels reach of this hardware is assumed: ratios are worth more than times."
            if assumed
            else "",
            table="\n".join(map(_line, lines)),
            plots=json.dumps(plots).replace("</", "<\\/"),
        )
    )


def check_picture(file: Path) -> None:
    """Whether a plot can be written there.

    Raises:
        ConfigError: it ends in none of the forms that there are, or what draws is not installed.
    """
    if file.suffix.lower() not in _DRAWN:
        raise ConfigError(f"{file} is no plot that can be drawn: it must end in .png or .svg")
    drawing.find_drawing()


def write_picture(file: Path, runs: Sequence[Run]) -> None:
    """Write all plots as one PNG or SVG, by the file's ending.

    Raises:
        ConfigError: as `check_picture`.
        OSError: the file cannot be written.
    """
    check_picture(file)
    file.write_bytes(_DRAWN[file.suffix.lower()](charts.together(runs)))


def _line(cells: Sequence[str]) -> str:
    what, *values = map(escape, cells)
    return f"<tr><th>{what}</th>" + "".join(f"<td>{value}</td>" for value in values) + "</tr>"
