"""`inlay store drain`: empties a node before it leaves."""

from typing import Annotated

import typer

from inlay.serve.commands.store_options import (
    DEFAULT_MASTER,
    Master,
    Timeout,
    TokenFile,
    administration,
)

ASK_EVERY_S = 0.2


def store_drain(
    node: Annotated[str, typer.Argument(metavar="NODE", show_default=False)],
    master: Master = DEFAULT_MASTER,
    token_file: TokenFile = None,
    timeout: Timeout = 5.0,
) -> None:
    """Move a node's objects to others. Then it leaves: its process ends.

    Ctrl-C ends only the waiting; the objects are moved nevertheless. The exit
    code is 1 where some have no room elsewhere.
    """
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from inlay.core.errors import StoreFull

    console = Console(stderr=True)
    with (
        administration(master, token_file, timeout) as store,
        Progress(
            TextColumn(f"draining {node}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("objects"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as bar,
    ):
        state = store.drain(node)
        most = state.objects_left
        task = bar.add_task("", total=most)
        while not state.done:
            if state.objects_left and state.objects_left == state.objects_stuck:
                raise StoreFull(
                    f"no other node has room for what {node} holds, {_objects(state.objects_stuck)}"
                    ": start one more node, or remove objects; what could be moved is elsewhere"
                )
            time.sleep(ASK_EVERY_S)
            state = store.drain(node)
            most = max(most, state.objects_left)
            bar.update(task, total=most, completed=most - state.objects_left)
    print(f"{node} is empty: {_objects(most)} moved")


def _objects(number: int) -> str:
    return "1 object" if number == 1 else f"{number} objects"
