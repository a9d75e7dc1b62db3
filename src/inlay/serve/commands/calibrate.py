"""`inlay calibrate`: measure the instances of a deployment, so that dispatchers know them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inlay.serve.commands.deployment_options import Name, supervisor_of

if TYPE_CHECKING:
    from inlay.cluster.calibrate import Calibration


def calibrate(
    name: Name = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where to write a JSON file for each kind of instance.",
            show_default="where dispatchers look",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="How long to measure each kind of instance.")
    ] = 20.0,
) -> None:
    """Measure how long steps take at one instance of each kind, and save it as JSON.

    Dispatchers that start later predict with it from their first request on. The deployment
    serves meanwhile, but not as fast; measure it while nobody uses it.
    """
    from rich.console import Console

    from inlay.cluster.chooser import timing_kind
    from inlay.serve.cluster.calibration import calibrate_deployment, timing_directory

    directory = output or timing_directory()
    directory.mkdir(parents=True, exist_ok=True)
    for found in calibrate_deployment(supervisor_of(name), seconds, say=print):
        file = directory / timing_kind(found.info)
        found.model.save(file)
        Console().print(_table(found))
        print(f"saved to {file}")


def _table(found: "Calibration") -> object:
    from rich.table import Table

    model, info = found.model, found.info
    title = (
        f"{info.name}, {Path(info.engine.model).name} on {info.engine.device} ({info.engine.isa}): "
        f"{found.num_steps} steps, half of them within {found.median_error:.0%}"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("", "time", "rate"):
        table.add_column(heading, justify="left" if not heading else "right")
    context = info.engine.max_context_tokens
    for tokens in (128, 512, 2048, 8192):
        if tokens < context:
            took_s = model.prefill_s(tokens, 0, info.prefill_chunk)
            rate = f"{tokens / took_s:,.0f} tokens/s"
            table.add_row(f"prompt of {tokens:,} tokens", f"{1e3 * took_s:,.1f} ms", rate)
    for rows in (1, 8, 64):
        if rows <= info.max_running:
            took_s = model.decode_s(rows, rows * min(512, context))
            rate = f"{rows / took_s:,.0f} tokens/s"
            table.add_row(f"step of {rows} decodes", f"{1e3 * took_s:,.1f} ms", rate)
    return table
