"""`inlay weights publish`: offer a checkpoint to all who pull it."""

from pathlib import Path
from typing import Annotated

import typer

from inlay.serve.commands.weights_options import (
    DEFAULT_NAME,
    Listen,
    Name,
    TokenFile,
    weights_engine,
)


def weights_publish(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="*.safetensors, and config.json beside them.", show_default=False
        ),
    ],
    version: Annotated[
        str,
        typer.Option(metavar="VERSION", help="What this state of it is called.", show_default="1"),
    ] = "1",
    name: Name = DEFAULT_NAME,
    listen: Listen = "127.0.0.1:17100",
    peers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="End when so many peers hold all.", show_default="until Ctrl-C"
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long --peers waits.")
    ] = 3600.0,
    token_file: TokenFile = None,
) -> None:
    """Offer a checkpoint until Ctrl-C.

    Peers read the files where they lie, each piece once or twice, and have the rest
    from each other. DIR must not change meanwhile; publish the next state from
    another directory.
    """
    import threading

    from inlay.weights import Publisher

    with weights_engine(listen, token_file) as engine, Publisher(engine, name) as publisher:
        typer.echo(f"reading {directory}", err=True)
        manifest = publisher.publish(version, directory)
        typer.echo(
            f"{name} {version} at {publisher.address}: {len(manifest.entries)} entries, "
            f"{manifest.size_bytes} bytes, fingerprint {manifest.fingerprint}"
        )
        if peers is None:
            threading.Event().wait()
        else:
            publisher.wait_until_held(peers, timeout_s=timeout)
            typer.echo(f"{peers} peers hold it")
