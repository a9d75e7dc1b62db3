"""`inlay doctor`: what this machine can do for Inlay, and what holds it back."""

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIRECTORY",
            help="A packed model whose weights to compare with their checksums.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, with stable field names.")
    ] = False,
    topology: Annotated[
        bool,
        typer.Option("--topology", help="Draw only how memory, GPUs and network ports connect."),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Write what was measured for `inlay plan --machine FILE.toml`; plans take "
            "machine.toml in the cache directory without being told.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Look at this machine: what Inlay will use, what holds it back, what is missing.

    Measures memory bandwidth and disk speed, which takes about 2 seconds;
    `--topology` measures nothing. The exit code is 1 if something is missing that
    Inlay needs, or the model's weights are damaged.
    """
    import json

    from rich.console import Console

    if topology:
        if model is not None or save is not None:
            raise typer.BadParameter(
                "looks at no model and measures nothing: leave DIRECTORY and --save out",
                param_hint="--topology",
            )
        from inlay.serve.doctor.topology import print_topology, topology_as_dict
        from inlay.transfer.topology import read_topology

        found = read_topology()
        if as_json:
            print(json.dumps(topology_as_dict(found), indent=2))
        else:
            print_topology(Console(), found)
        return

    from inlay.core.settings import read_settings
    from inlay.serve.doctor.advice import find, make_plan
    from inlay.serve.doctor.examine import examine
    from inlay.serve.doctor.report import as_dict, print_report

    errors = Console(stderr=True)
    with errors.status("measuring memory and disk ..."):
        facts = examine(read_settings(), model)
    if save is not None:
        from inlay.core.hardware import write_machine
        from inlay.serve.plan.machine import machine_of

        measured = machine_of(facts.cpu, facts.memory, facts.bandwidth, facts.gpus.devices)
        write_machine(measured, save)
        errors.print(f"wrote {save}", markup=False)
    plan, findings = make_plan(facts), find(facts)
    if as_json:
        print(json.dumps(as_dict(facts, plan, findings), indent=2))
    else:
        print_report(Console(), facts, plan, findings)
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)
