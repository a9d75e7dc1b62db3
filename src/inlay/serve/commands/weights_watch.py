"""`inlay weights watch`: pull each new version, and tell a server of it."""

from pathlib import Path
from typing import Annotated

import typer

from inlay.serve.commands.weights_options import (
    DEFAULT_NAME,
    Listen,
    Name,
    Publishers,
    TokenFile,
    weights_engine,
)


def weights_watch(
    publishers: Publishers,
    directory: Annotated[
        Path,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Has a directory for each version, and a link `current` to the newest.",
            show_default=False,
        ),
    ],
    name: Name = DEFAULT_NAME,
    listen: Listen = "127.0.0.1:0",
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An inlay serve on this host, which takes each version: http://127.0.0.1:8000.",
            show_default="none",
        ),
    ] = None,
    keep: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many versions stay in DIR.")
    ] = 2,
    every: Annotated[
        float, typer.Option(min=0.05, metavar="SECONDS", help="How often publishers are asked.")
    ] = 1.0,
    versions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="End after so many.", show_default="until Ctrl-C"),
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Pull each new version of a checkpoint until Ctrl-C.

    What has not changed since the version before is copied from it. Others have the
    newest version from here. A publisher that is gone is waited for.
    """
    from inlay.serve.weights.watch import Watch

    with weights_engine(listen, token_file) as engine:
        watch = Watch(engine, publishers, name, directory, keep=keep, server=server, say=typer.echo)
        try:
            watch.run(every_s=every, versions=versions)
        finally:
            watch.close()
