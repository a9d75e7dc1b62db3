"""`inlay drain`: takes one instance out."""

from typing import Annotated

import typer

from inlay.serve.commands.deployment_options import NameOption, Wait, supervisor_of


def drain(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="Its name, e.g. decode-0.")],
    name: NameOption = None,
    wait: Wait = 600.0,
) -> None:
    """Give an instance no new requests, and stop it when it has none."""
    from inlay.cluster.control import Done, Drain
    from inlay.cluster.control_client import ask

    done = ask(supervisor_of(name).control, Drain(instance), timeout_s=wait)
    assert isinstance(done, Done)
    print(done.text)
