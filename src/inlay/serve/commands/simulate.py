"""`inlay simulate`: a trace on instances that nobody has, by the policies that serve."""

from typing import Annotated

import typer


def simulate(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO.toml",
            help="Instances, policy, objectives; docs/guides/simulate.md has the keys.",
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
            help="In the place of the scenario's; several are run one after the other and shown "
            "side by side.",
            show_default=False,
        ),
    ] = None,
    years: Annotated[
        float, typer.Option(help="In which hardware is paid off, for the price of tokens.")
    ] = 4.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with stable field names.")
    ] = False,
) -> None:
    """Say what these instances would do with these requests.

    Policies, prefix index and admission are those of `inlay up`; steps take what a
    roofline of the hardware, a calibration or a table of measured steps says. Nothing
    is started. The exit code is 1 if a model does not fit.
    """
    import json
    from dataclasses import replace
    from pathlib import Path

    from rich.console import Console

    from inlay.core.errors import ConfigError
    from inlay.core.settings import read_settings
    from inlay.core.units import parse_seconds
    from inlay.serve.plan.machine import find_machine
    from inlay.serve.plan.model import find_model
    from inlay.serve.simulate.report import print_figures
    from inlay.sim import transform
    from inlay.sim.figures import figures
    from inlay.sim.formats import read
    from inlay.sim.scenario_file import read_scenario
    from inlay.sim.simulation import Simulation

    if not 0 < years < float("inf"):
        raise ConfigError(f"--years is {years}: it must be above 0")
    settings = read_settings()
    asked = read_scenario(
        Path(scenario).expanduser(),
        lambda name: find_model(name).shape,
        lambda name: find_machine(name, settings)[0],
    )
    requests = read(Path(trace).expanduser(), format=trace_format, block_tokens=asked.page_tokens)
    if until is not None:
        requests = transform.cut(requests, 0.0, parse_seconds(until))
    if lengths != 1:
        requests = transform.scale_lengths(requests, lengths)
    if rate != 1:
        requests = transform.scale_rate(requests, rate)
    runs = []
    for name in policy or [asked.policy]:
        own = asked if name == asked.policy else replace(asked, policy=name, policy_options={})
        runs.append(figures(Simulation(own).run(requests), own, years=years))
    if as_json:
        print(json.dumps(runs if len(runs) > 1 else runs[0], indent=2))
    else:
        print_figures(Console(), runs)
