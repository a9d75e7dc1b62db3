"""`inlay weights pull`: a checkpoint from its publisher, and from all who hold it."""

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


def weights_pull(
    publishers: Publishers,
    directory: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="A new directory.", show_default=False)
    ],
    version: Annotated[
        str | None, typer.Option(metavar="VERSION", show_default="the newest", help="Which one.")
    ] = None,
    name: Name = DEFAULT_NAME,
    listen: Listen = "127.0.0.1:0",
    stay: Annotated[
        bool, typer.Option("--stay", help="Let others have it from here until Ctrl-C.")
    ] = False,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="DTYPE",
            help="In which to hold floats: BF16, F16, F32.",
            show_default="as published",
        ),
    ] = "",
    token_file: TokenFile = None,
) -> None:
    """Pull a checkpoint into a directory.

    While it comes, others have pieces from here. Every piece is compared with its
    checksum; DIR is there when all of it is.
    """
    import threading

    from inlay.serve.rate_line import RateLine
    from inlay.weights import DirectoryLanding, pull

    line = RateLine(f"pulling {name}", lambda text: typer.echo(text, err=True))
    with weights_engine(listen, token_file) as engine:
        landing = DirectoryLanding(directory, dtype=dtype)
        with pull(
            engine, publishers, name, landing=landing, version=version, progress=line
        ) as held:
            taken = held.report.taken_bytes
            typer.echo(
                f"{directory} has {name} {held.manifest.version}: {sum(taken.values())} bytes from "
                f"{len(taken)} peers in {held.report.seconds:.1f} s, fingerprint "
                f"{held.manifest.fingerprint}"
            )
            if stay:
                threading.Event().wait()
