"""`inlay migrate`: the line of `inlay serve` for another server's launch command."""

from typing import Annotated

import typer


def migrate(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="The command in quotes, or its words behind --.",
            show_default=False,
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with stable field names.")
    ] = False,
) -> None:
    """Translate the launch command of another server to a line of inlay serve.

    Knows SGLang with KTransformers' flags, kt run, vLLM, and llama.cpp. Runs
    nothing. Every flag is told of: what it becomes and why, that it is no
    longer needed, or that Inlay cannot do it yet and what it does instead.
    """
    import json

    from rich.console import Console

    from inlay.serve.migrate.report import as_dict, print_report
    from inlay.serve.migrate.translate import translate

    migration = translate(command)
    if as_json:
        print(json.dumps(as_dict(migration), indent=2))
    else:
        print_report(Console(), migration)
