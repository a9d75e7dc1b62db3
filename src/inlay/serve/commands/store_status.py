"""`inlay store status`: the nodes of a store and how full they are."""

from typing import TYPE_CHECKING, Annotated

import typer

from inlay.serve.commands.store_options import (
    DEFAULT_MASTER,
    Json,
    Master,
    Timeout,
    TokenFile,
    administration,
)

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.store.administration import Administration


def store_status(
    master: Master = DEFAULT_MASTER,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often the table changes.")
    ] = 1.0,
    token_file: TokenFile = None,
    timeout: Timeout = 5.0,
    as_json: Json = False,
) -> None:
    """Show the master, the nodes and what they hold, live until Ctrl-C.

    Where the output is no terminal, and with --json, it is printed once.
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from inlay.serve.store.status import StatusTable

    console = Console()
    with administration(master, token_file, timeout) as store:
        if as_json:
            found = store.survey()
            print(
                json.dumps(
                    {"master": store.address, "hit_rate": found.hit_rate, **asdict(found)}, indent=2
                )
            )
        elif once or not console.is_terminal:
            console.print(StatusTable().render(store.survey(), store.address, 0.0))
        else:
            _live(store, console, every)


def _live(store: "Administration", console: "Console", every_s: float) -> None:
    """Draw until Ctrl-C, also over the loss of a master."""
    import time

    from rich.live import Live
    from rich.text import Text

    from inlay.core.errors import StoreError
    from inlay.serve.store.status import StatusTable

    table = StatusTable()
    first = store.survey()  # nothing to draw without it
    with Live(
        table.render(first, store.address, time.monotonic()), console=console, auto_refresh=False
    ) as live:
        while True:
            time.sleep(every_s)
            try:
                found = store.survey()
            except StoreError as error:
                live.update(Text(f"{error}", style="yellow"), refresh=True)
                continue
            live.update(table.render(found, store.address, time.monotonic()), refresh=True)
