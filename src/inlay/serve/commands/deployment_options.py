"""Options of the commands that ask the supervisor of a deployment."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from inlay.cluster.deployment_directory import Supervised

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="Of the deployment.", show_default="the only one that runs"
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", "-n", help="Of the deployment.", show_default="the only one that runs"),
]
Wait = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait until it is done.")
]


def supervisor_of(name: str | None) -> "Supervised":
    """The supervisor of a deployment of this user. Raises DeploymentError."""
    from inlay.cluster.deployment_directory import deployments_root, find_running

    return find_running(deployments_root(), name)
