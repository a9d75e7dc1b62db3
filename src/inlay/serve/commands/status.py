"""`inlay status`: the processes of a deployment."""

from typing import Annotated

import typer

from inlay.serve.commands.deployment_options import Name, Wait, supervisor_of


def status(
    name: Name = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    wait: Wait = 5.0,
) -> None:
    """Show what a deployment's processes do, and where it is reached."""
    import json

    from msgspec.structs import asdict
    from rich.console import Console

    from inlay.cluster.control import Status, StatusRequest
    from inlay.cluster.control_client import ask
    from inlay.serve.cluster.status_table import status_table

    found = ask(supervisor_of(name).control, StatusRequest(), timeout_s=wait)
    assert isinstance(found, Status)
    if as_json:
        processes = [asdict(one) for one in found.processes]
        print(json.dumps({**asdict(found), "processes": processes}, indent=2))
    else:
        Console().print(status_table(found))
