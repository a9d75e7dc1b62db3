"""`inlay up`: starts a deployment, and keeps it running."""

from pathlib import Path
from typing import Annotated

import typer


def up(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A deployment's TOML file.")],
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Go to the background once it is ready.")
    ] = False,
) -> None:
    """Start what a deployment file says, and keep it running until Ctrl-C.

    A process that ends is started again. inlay status, scale, drain and down
    ask about it and change it from another terminal.
    """
    from functools import partial

    from rich.console import Console

    from inlay.cluster.deployment_directory import DeploymentDirectory, deployments_root
    from inlay.cluster.deployment_file import read_deployment
    from inlay.serve.cluster.status_table import status_table

    console = Console()
    deployment = read_deployment(file)
    directory = DeploymentDirectory(deployments_root(), deployment.name)
    say = partial(print, flush=True)
    if detach:
        from inlay.serve.cluster.detach import start_detached

        found = start_detached(file, directory, timeout_s=deployment.start_timeout_s)
        console.print(status_table(found))
        say(f"It runs in the background; inlay down {deployment.name} stops it.")
        return

    from inlay.serve.cluster.run import run_deployment

    run_deployment(
        deployment,
        file.resolve(),
        directory,
        say=say,
        show=lambda found: console.print(status_table(found), "\nStop with Ctrl+C."),
    )
