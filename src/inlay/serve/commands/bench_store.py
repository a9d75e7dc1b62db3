"""`inlay bench store`: rates and latencies of a store."""

from typing import TYPE_CHECKING, Annotated

import typer

from inlay.serve.commands.store_options import Json, TokenFile

if TYPE_CHECKING:
    from inlay.serve.bench.store import Point, StoreBench


def bench_store(
    master: Annotated[
        str | None,
        typer.Argument(
            metavar="ADDRESS",
            help="A store's master, which has a node.",
            show_default="a store is started on this host",
        ),
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Of a node that is started.")
    ] = "1GiB",
    room: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What the objects of one point may take.",
            show_default="a quarter of --memory",
        ),
    ] = None,
    op: Annotated[str, typer.Option(help="Some of put, get, exists.")] = "put,get,exists",
    sizes: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Of values.")
    ] = "4KiB,64KiB,1MiB,16MiB",
    batches: Annotated[str, typer.Option(metavar="N,...", help="Keys per call.")] = "1,32",
    seconds: Annotated[float, typer.Option(help="How long each point is measured.")] = 1.0,
    objects: Annotated[int, typer.Option(help="How many objects reads go through.")] = 256,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Measure one client: puts of new keys, reads into its memory, and whether keys are there.

    What it puts it removes. Ctrl-C ends it; what was measured until then is printed.
    """
    from contextlib import ExitStack

    from inlay.core.errors import ConfigError
    from inlay.core.units import parse_bytes
    from inlay.serve.bench.store import StoreBench, StoreBenchConfig, own_store
    from inlay.store import Store
    from inlay.store.tenants import read_token

    try:
        counts = [int(count) for count in batches.split(",")]
    except ValueError:
        raise ConfigError(f"--batches {batches}: write whole numbers, as 1,32") from None
    memory_bytes = parse_bytes(memory)
    config = StoreBenchConfig(
        ops=op.split(","),
        value_bytes=[parse_bytes(size) for size in sizes.split(",")],
        batches=counts,
        seconds=seconds,
        objects=objects,
        room_bytes=parse_bytes(room) if room else memory_bytes // 4,
    )
    with ExitStack() as stack:
        if master is None:
            own = stack.enter_context(own_store(memory_bytes))
            where, token = own.master, own.token
        else:
            where, token = master, read_token(token_file)
        store = stack.enter_context(Store.connect(where, token=token))
        _measure(StoreBench(store, config), where, as_json)


def _measure(bench: "StoreBench", master: str, as_json: bool) -> None:
    """Run all points; interrupted, print those that are done, and go on with the interrupt."""
    import json
    from dataclasses import asdict

    from rich.console import Console

    from inlay import __version__

    points: list[Point] = []
    try:
        with Console(stderr=True).status(f"measuring the store at {master} ..."):
            for point in bench.run():
                points.append(point)  # one by one: an interrupt leaves those that are done
    finally:
        if as_json:
            about = {"version": __version__, "master": master}
            print(json.dumps({**about, "points": [asdict(point) for point in points]}, indent=2))
        elif points:
            _print_table(points)


def _print_table(points: "list[Point]") -> None:
    """A row per point."""
    from rich.console import Console
    from rich.table import Table

    from inlay.core.units import format_bytes

    head = ("op", "value", "batch", "calls", "keys/s", "GB/s", "P50 us", "P90 us", "P99 us")
    table = Table()
    for index, name in enumerate(head):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for point in points:
        value = format_bytes(point.value_bytes) if point.value_bytes else "-"
        speed = f"{point.gbs:.2f}" if point.value_bytes else "-"
        table.add_row(
            point.op,
            value,
            str(point.batch),
            str(point.calls),
            f"{point.keys_per_s:.0f}",
            speed,
            *(f"{one:.1f}" for one in (point.p50_us, point.p90_us, point.p99_us)),
        )
    Console().print(table)
