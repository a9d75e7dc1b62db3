"""`inlay scale`: another number of instances."""

from typing import Annotated

import typer

from inlay.serve.commands.deployment_options import NameOption, Wait, supervisor_of


def scale(
    group: Annotated[
        str, typer.Argument(metavar="GROUP=COUNT", help="Of instances, e.g. decode=3.")
    ],
    name: NameOption = None,
    wait: Wait = 600.0,
) -> None:
    """Have another number of instances in a group, and wait until they serve.

    Those that are too many get no new requests and end when they have none.
    """
    from inlay.cluster.control import Done, Scale
    from inlay.cluster.control_client import ask
    from inlay.core.errors import ConfigError

    group_name, separator, count = group.partition("=")
    if not separator or not count.strip().isdigit():
        raise ConfigError(f"{group}: write GROUP=COUNT, for example decode=3")
    message = Scale(group_name.strip(), int(count))
    done = ask(supervisor_of(name).control, message, timeout_s=wait)
    assert isinstance(done, Done)
    print(done.text)
