"""`inlay trace check`: whether a file of requests is as it must be, and what is in it."""

from typing import Annotated

import typer


def trace_check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A trace of Mooncake or Azure, or a log of an OpenAI server; may be gzipped.",
        ),
    ],
    trace_format: Annotated[
        str, typer.Option("--format", help="auto, mooncake, azure or openai.")
    ] = "auto",
    block_tokens: Annotated[
        int, typer.Option(help="Tokens of a block, which no file says by itself.")
    ] = 512,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with stable field names.")
    ] = False,
) -> None:
    """Read all requests of a trace, and say what they are.

    The first line that is wrong is named, and the exit code is 1. Memory holds
    some thousand requests at a time, and 16 bytes for each different block.
    """
    import json
    from pathlib import Path

    from rich.console import Console

    from inlay.serve.commands.trace_requests import parts_of
    from inlay.serve.simulate.survey import print_survey
    from inlay.sim.known_names import KnownNames
    from inlay.sim.survey import survey

    known = KnownNames()
    parts = parts_of(Path(file).expanduser(), trace_format, block_tokens, known=known)
    found = survey(parts, known)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_survey(Console(), file, found)
