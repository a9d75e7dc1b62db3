"""`inlay down`: stops a deployment."""

from typing import Annotated

import typer

from inlay.serve.commands.deployment_options import Name, Wait, supervisor_of


def down(
    name: Name = None,
    now: Annotated[
        bool, typer.Option("--now", help="Do not let running requests end first.")
    ] = False,
    wait: Wait = 60.0,
) -> None:
    """Stop all processes of a deployment, and wait until they are gone."""
    from inlay.cluster.control import Stop
    from inlay.cluster.control_client import ask

    ask(supervisor_of(name).control, Stop(at_once=now), timeout_s=wait)
    print("stopped")
