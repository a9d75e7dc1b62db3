"""`inlay simulate`: a trace on instances that nobody has, by the policies that serve."""

from typing import Annotated

import typer


def simulate(
    scenario: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO.toml...",
            help="Instances, policy, objectives; docs/guides/simulate.md has the keys. Several are "
            "run one after the other and shown side by side.",
        ),
    ],
    trace: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Requests: a trace of Mooncake or Azure, or a log of an OpenAI server; may be "
            "gzipped.",
        ),
    ],
    trace_format: Annotated[
        str, typer.Option("--format", help="auto, mooncake, azure or openai.")
    ] = "auto",
    rate: Annotated[
        float, typer.Option(help="How many times as fast requests come as in the trace.")
    ] = 1.0,
    lengths: Annotated[
        float, typer.Option(help="How many times as long prompts and answers are.")
    ] = 1.0,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only what comes before that time of the trace, such as 10min.",
            show_default="all of it",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="In the place of the scenario's; several are shown side by side, too.",
            show_default=False,
        ),
    ] = None,
    years: Annotated[
        float, typer.Option(help="In which hardware is paid off, for the price of tokens.")
    ] = 4.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with stable field names.")
    ] = False,
    html: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write a page with plots, too, which needs no network.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the plots as a .png or .svg, too.", show_default=False
        ),
    ] = None,
) -> None:
    """Say what these instances would do with these requests.

    Policies, prefix index and admission are those of `inlay up`; steps take what a
    roofline of the hardware, a calibration or a table of measured steps says. Nothing
    is started. The exit code is 1 if a model does not fit.
    """
    import json
    import math
    from dataclasses import replace
    from pathlib import Path

    from rich.console import Console

    from inlay.core.errors import ConfigError
    from inlay.core.settings import read_settings
    from inlay.core.units import parse_seconds
    from inlay.serve.commands.trace_requests import parts_of
    from inlay.serve.plan.machine import find_machine
    from inlay.serve.plan.model import find_model
    from inlay.serve.simulate.report import print_figures, table_rows
    from inlay.sim.figures import figures
    from inlay.sim.report.drawing import find_drawing
    from inlay.sim.report.page import check_picture, write_page, write_picture
    from inlay.sim.report.run import Run
    from inlay.sim.results import ResultsFile
    from inlay.sim.scenario_file import read_scenario
    from inlay.sim.simulation import Simulation

    if not 0 < years < float("inf"):
        raise ConfigError(f"--years is {years}: it must be above 0")
    if html is not None:
        find_drawing()
    if plot is not None:
        check_picture(Path(plot))
    settings = read_settings()
    asked = {
        file: read_scenario(
            Path(file).expanduser(),
            lambda name: find_model(name).shape,
            lambda name: find_machine(name, settings)[0],
        )
        for file in scenario
    }
    runs = []
    for file, one in asked.items():
        for name in policy or [one.policy]:
            own = one if name == one.policy else replace(one, policy=name, policy_options={})
            requests = parts_of(
                Path(trace).expanduser(),
                trace_format,
                one.page_tokens,
                until_s=math.inf if until is None else parse_seconds(until),
                lengths=lengths,
                rate=rate,
            )
            simulation = Simulation(own)
            results = ResultsFile(simulation.replay(requests))
            if late := simulation.too_late:
                raise ConfigError(
                    f"{file}: {own.told(late[0])}, when all requests were over: leave it out, or "
                    "replay a longer trace"
                )
            called = name if len(asked) == 1 else f"{Path(file).stem}, {name}"
            found = {"run": called, **figures(results, own, years=years)}
            runs.append(Run(name=called, scenario=own, results=results, figures=found))
    told = [run.figures for run in runs]
    if as_json:
        print(json.dumps(told if len(told) > 1 else told[0], indent=2))
    else:
        print_figures(Console(), told)
    if html is not None:
        title = f"{Path(trace).name} on {' and '.join(Path(file).stem for file in asked)}"
        write_page(Path(html).expanduser(), title, runs, table_rows(told))
    if plot is not None:
        write_picture(Path(plot).expanduser(), runs)
