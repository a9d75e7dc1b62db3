"""`inlay role`: another role for one instance."""

from typing import Annotated

import typer

from inlay.serve.commands.deployment_options import NameOption, Wait, supervisor_of


def role(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="Its name, e.g. decode-0.")],
    role: Annotated[str, typer.Argument(metavar="ROLE", help="prefill, decode or both.")],
    name: NameOption = None,
    wait: Wait = 10.0,
) -> None:
    """Let an instance be for other phases of requests. What runs there goes on."""
    from inlay.cluster.control import ChangeRole, Done
    from inlay.cluster.control_client import ask
    from inlay.core.errors import ConfigError
    from inlay.core.instance_messages import ROLES

    wanted = next((one for one in ROLES if one == role), None)
    if wanted is None:
        raise ConfigError(f"{role} is no role: write one of {', '.join(ROLES)}")
    done = ask(supervisor_of(name).control, ChangeRole(instance, wanted), timeout_s=wait)
    assert isinstance(done, Done)
    print(done.text)
