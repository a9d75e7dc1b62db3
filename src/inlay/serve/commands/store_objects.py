"""`inlay store get`, `put`, `rm` and `explain`: single objects."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from inlay.serve.commands.store_options import (
    DEFAULT_MASTER,
    Key,
    Master,
    Timeout,
    TokenFile,
    administration,
)

if TYPE_CHECKING:
    from inlay.store import Store


def store_get(
    key: Key,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE|-", help="Where the value goes.")
    ] = "-",
    master: Master = DEFAULT_MASTER,
    token_file: TokenFile = None,
    timeout: Timeout = 5.0,
) -> None:
    """Write an object's value to standard output or a file.

    The exit code is 1 where there is no such object; a file is touched only
    when there is one.
    """
    with _store(master, token_file, timeout) as store:
        value = store.get(key)
    if output == "-":
        if sys.stdout.isatty() and b"\0" in value[:1024]:
            from inlay.core.errors import ConfigError

            raise ConfigError("the value is no text: give -o FILE, or send the output elsewhere")
        sys.stdout.buffer.write(value)
    else:
        Path(output).write_bytes(value)


def store_put(
    key: Key,
    value: Annotated[
        str, typer.Argument(metavar="FILE|-", help="The value; - is standard input.")
    ] = "-",
    if_exists: Annotated[
        Literal["keep", "replace", "error"],
        typer.Option(help="What an object of this key leads to."),
    ] = "keep",
    replicas: Annotated[int, typer.Option(min=1, max=8, help="On so many nodes.")] = 1,
    durability: Annotated[
        Literal["memory", "disk"], typer.Option(help="Where it has to be when this ends.")
    ] = "memory",
    soft_pin: Annotated[bool, typer.Option("--soft-pin", help="Evict it last.")] = False,
    hard_pin: Annotated[bool, typer.Option("--hard-pin", help="Never evict it.")] = False,
    group: Annotated[str | None, typer.Option(help="Evicted together.", show_default=False)] = None,
    master: Master = DEFAULT_MASTER,
    token_file: TokenFile = None,
    timeout: Timeout = 5.0,
) -> None:
    """Put a file, or what comes on standard input, under a key."""
    from inlay.core.errors import KeyNotFound
    from inlay.core.units import format_bytes
    from inlay.store import PutOptions

    content = sys.stdin.buffer.read() if value == "-" else Path(value).read_bytes()
    options = PutOptions(
        if_exists=if_exists,
        replicas=replicas,
        durability=durability,
        soft_pin=soft_pin,
        hard_pin=hard_pin,
        group=group,
    )
    with _store(master, token_file, timeout) as store:
        result = store.put(key, content, options)
        where = ""
        if replicas > 1:
            try:
                nodes = {node for node, _ in store.stat(key).replicas}
                where = f", on {len(nodes)} of {replicas} nodes"
            except KeyNotFound:  # the put was good
                where = ", evicted or removed since"
    what = f"{key}: {format_bytes(len(content))}" if result.stored else f"{key}: kept as it was"
    print(f"{what}{where}, generation {result.generation}")


def store_rm(
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY...", show_default=False)] = None,
    prefix: Annotated[
        str | None,
        typer.Option(help="Remove all objects whose keys begin so.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Remove all objects.")] = False,
    master: Master = DEFAULT_MASTER,
    token_file: TokenFile = None,
    timeout: Timeout = 5.0,
) -> None:
    """Remove objects. The exit code is 1 where one of them was not there."""
    from inlay.core.errors import ConfigError

    if bool(keys) + (prefix is not None) + every != 1:
        raise ConfigError("give keys, --prefix, or --all")
    if prefix == "":
        raise ConfigError("--prefix is empty: give --all to remove all objects")
    with _store(master, token_file, timeout) as store:
        if not keys:
            print(f"{store.remove_prefix(prefix or '')} removed")
            return
        removed = store.remove_many(keys)
    missing = [key for key, gone in zip(keys, removed, strict=True) if not gone]
    for key in missing:
        typer.echo(f"inlay: {key}: there is no such object", err=True)
    if missing:
        raise typer.Exit(1)


def store_explain(
    key: Key,
    master: Master = DEFAULT_MASTER,
    token_file: TokenFile = None,
    timeout: Timeout = 5.0,
) -> None:
    """Tell why an object is where it is, or why it is not there."""
    with administration(master, token_file, timeout) as store:
        print(store.explain(key).rstrip())


def _store(master: str, token_file: Path | None, timeout_s: float) -> "Store":
    from inlay.store import Store
    from inlay.store.tenants import read_token

    return Store.connect(master, token=read_token(token_file), timeout_s=timeout_s)
