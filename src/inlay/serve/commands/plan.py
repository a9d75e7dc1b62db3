"""`inlay plan`: what a model will do on a machine, before its weights are downloaded."""

from typing import Annotated

import typer


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
            help="How weights are held: auto is as published; float32, bfloat16, int8, int8:g32, "
            "uint4:g32, int4, int4:g64, int4:g128; or two, of experts and of the rest: "
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
) -> None:
    """Say what goes where, what memory it takes, how fast it will be, and what would help most.

    Works from config.json alone. Without --machine, this machine is measured for
    some seconds, unless `inlay doctor --save` has kept a measurement. The exit code
    is 1 if the model does not fit.
    """
    import json
    from pathlib import Path

    from rich.console import Console

    from inlay.core.settings import read_settings
    from inlay.engine.config import SchedulerConfig
    from inlay.experts import read_rules
    from inlay.serve.plan.changes import find_changes
    from inlay.serve.plan.machine import find_machine
    from inlay.serve.plan.make import make_plan
    from inlay.serve.plan.model import find_model
    from inlay.serve.plan.record import as_dict
    from inlay.serve.plan.report import print_plan

    asked = None if rules is None else read_rules(Path(rules).expanduser())
    found = find_model(model)
    hardware, origin = find_machine(machine, read_settings())
    made = make_plan(
        found,
        hardware,
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
