"""Options that the commands of `inlay weights` share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from inlay.transfer import TransferEngine

Name = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Of the checkpoint, for all its versions.")
]
Listen = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="Where other peers reach this one. Port 0: any free."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="16 to 64 bytes that all peers hold.", show_default="this user's on this host"
    ),
]
Publishers = Annotated[
    list[str],
    typer.Argument(
        metavar="ADDRESS...",
        help="Of the publisher, HOST:PORT; of all of them where each has a part.",
        show_default=False,
    ),
]

DEFAULT_NAME = "model"


def weights_engine(listen: str, token_file: Path | None) -> "TransferEngine":
    """What moves the bytes; others have them from it, too."""
    from inlay.store.tenants import read_token
    from inlay.transfer import TransferConfig, TransferEngine

    return TransferEngine(
        listen, token=read_token(token_file), config=TransferConfig(traffic_class="background")
    )
