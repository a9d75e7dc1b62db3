"""`inlay plan`: what a model will do on a machine, and which machines to buy for a trace."""

from typing import Annotated

import typer

_FLEETS = "With --cluster"


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A known model such as deepseek-v3, a model directory or its config.json, or "
            "org/name\\[@revision] on the Hugging Face hub or modelscope:org/name, of which "
            "config.json alone is fetched. Without it: the demo model.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of prompt and answer together of each request.",
            show_default="8192, or the model's own if that is less",
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="A file of `inlay doctor --save`, or a machine of the catalogue such as "
            "xeon-spr-2s+h800 or epyc-genoa+2x4090.",
            show_default="this one",
        ),
    ] = None,
    weight_format: Annotated[
        str,
        typer.Option(
            help="How weights are held: auto is as published; float32, bfloat16, float16, int8, "
            "int8:g32, uint4:g32, int4, int4:g64, int4:g128; or two, of experts and of the rest: "
            "int4:g32+bfloat16."
        ),
    ] = "auto",
    rules: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Placement rules in KTransformers' grammar (YAML): what runs where, in the place "
            "of what costs least. docs/guides/placement.md has the grammar.",
            show_default="places by cost",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with stable field names.")
    ] = False,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Search the catalogue for the best fleet that serves a trace, in the place of "
            "looking at one machine.",
            rich_help_panel=_FLEETS,
        ),
    ] = False,
    model_name: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="The same as the argument.",
            show_default=False,
            rich_help_panel=_FLEETS,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Requests, as `inlay simulate` takes them.",
            show_default=False,
            rich_help_panel=_FLEETS,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only what comes before that time of the trace, such as 10min.",
            show_default="all of it",
            rich_help_panel=_FLEETS,
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="OBJECTIVES",
            help="Such as ttft=5s,tbt=100ms; itl=200ms is of each gap.",
            show_default=False,
            rich_help_panel=_FLEETS,
        ),
    ] = None,
    attain: Annotated[
        float,
        typer.Option(
            help="Share of the requests that are to keep all of them.", rich_help_panel=_FLEETS
        ),
    ] = 0.9,
    optimize: Annotated[
        str,
        typer.Option(
            metavar="AIM",
            help="cost: the cheapest fleet; throughput: the one of --budget that serves most "
            "requests in time; ttft: the one with the earliest first tokens.",
            rich_help_panel=_FLEETS,
        ),
    ] = "cost",
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="USD",
            help="For all hardware.",
            show_default="no limit",
            rich_help_panel=_FLEETS,
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="GPUs of the catalogue, machines or their files, such as h800,h20.",
            show_default="all GPUs with a price",
            rich_help_panel=_FLEETS,
        ),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.toml",
            help="Write the first fleet for `inlay simulate`.",
            show_default=False,
            rich_help_panel=_FLEETS,
        ),
    ] = None,
    deployment: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.toml",
            help="Write it for `inlay up`; only what that can start is searched then.",
            show_default=False,
            rich_help_panel=_FLEETS,
        ),
    ] = None,
) -> None:
    """Say what goes where, what memory it takes, how fast it will be, and what would help most.

    Works from config.json alone. Without --machine, this machine is measured for
    some seconds, unless `inlay doctor --save` has kept a measurement. The exit code
    is 1 if the model does not fit. With --cluster: which GPUs, how many and in which
    roles serve a trace's requests in time, at the least price; docs/guides/fleets.md.
    """
    import json
    from pathlib import Path

    from rich.console import Console

    from inlay.core.errors import ConfigError
    from inlay.core.settings import read_settings
    from inlay.engine.config import SchedulerConfig
    from inlay.experts import read_rules
    from inlay.serve.plan.changes import find_changes
    from inlay.serve.plan.machine import find_machine
    from inlay.serve.plan.make import make_plan
    from inlay.serve.plan.model import find_model
    from inlay.serve.plan.record import as_dict
    from inlay.serve.plan.report import print_plan

    if model is not None and model_name is not None:
        raise ConfigError(f"the model is {model}, and --model says {model_name}: leave one out")
    model = model or model_name
    if cluster:
        from inlay.serve.commands.plan_cluster import FleetOptions, plan_cluster

        single = {"--context": context, "--machine": machine, "--rules": rules}
        for name, value in single.items():
            if value is not None:
                raise ConfigError(f"{name} is for one machine: leave it out with --cluster")
        if trace is None or slo is None:
            raise ConfigError(
                "--cluster needs --trace and --slo, for example --trace log.jsonl --slo "
                "ttft=5s,tbt=100ms"
            )
        plan_cluster(
            FleetOptions(
                model=model,
                trace=trace,
                until=until,
                slo=slo,
                attain=attain,
                optimize=optimize,
                budget=budget,
                hardware=hardware,
                save=save,
                deployment=deployment,
                as_json=as_json,
            )
        )
        return
    fleets: dict[str, object] = {
        "--trace": trace,
        "--slo": slo,
        "--budget": budget,
        "--hardware": hardware,
    }
    fleets |= {"--optimize": None if optimize == "cost" else optimize}
    for name, given in {**fleets, "--save": save, "--deployment": deployment}.items():
        if given is not None:
            raise ConfigError(f"{name} is of fleets: add --cluster")
    asked = None if rules is None else read_rules(Path(rules).expanduser())
    found = find_model(model)
    planned_for, origin = find_machine(machine, read_settings())
    made = make_plan(
        found,
        planned_for,
        origin=origin,
        weight_format=weight_format,
        context=context,
        prefill_chunk=SchedulerConfig().prefill_chunk,
        rules=asked,
    )
    changes = find_changes(made)
    if as_json:
        print(json.dumps(as_dict(made, changes), indent=2))
    else:
        print_plan(Console(), made, changes)
