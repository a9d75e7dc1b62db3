"""Options that the commands of `inlay store` share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from inlay.store.administration import Administration

Master = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Where the master is: HOST:PORT, a list of them, or etcd://HOST:2379/CLUSTER.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="16 to 64 bytes that the master knows.", show_default="this user's on this host"
    ),
]
Timeout = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for the store.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with stable field names.")]
Key = Annotated[str, typer.Argument(metavar="KEY", show_default=False)]

DEFAULT_MASTER = "127.0.0.1:50051"


def administration(master: str, token_file: Path | None, timeout_s: float) -> "Administration":
    """Questions to the master that the options name."""
    from inlay.store.administration import Administration
    from inlay.store.tenants import read_token

    return Administration(master, read_token(token_file), timeout_s=timeout_s)


def host_and_port(text: str, option: str) -> tuple[str, int]:
    """One address to listen on.

    Raises:
        ConfigError: it is none.
    """
    from inlay.core.errors import ConfigError

    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{option} {text}: write HOST:PORT")
    return host.strip("[]"), int(port)
