"""`inlay bench store`: rates and latencies of a store."""

from typing import TYPE_CHECKING, Annotated

import typer

from inlay.serve.commands.bench_points import print_points
from inlay.serve.commands.store_options import Json, TokenFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from inlay.serve.bench.store import Point


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

    What it puts it removes. Ctrl-C ends it; what was measured until then is
    printed.
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
        print_points(
            StoreBench(store, config).run(),
            _columns(),
            status=f"measuring the store at {where} ...",
            about={"master": where},
            as_json=as_json,
        )


def _columns() -> "dict[str, Callable[[Point], str]]":
    from inlay.core.units import format_bytes

    return {
        "op": lambda point: point.op,
        "value": lambda point: format_bytes(point.value_bytes) if point.value_bytes else "-",
        "batch": lambda point: str(point.batch),
        "calls": lambda point: str(point.calls),
        "keys/s": lambda point: f"{point.keys_per_s:.0f}",
        "GB/s": lambda point: f"{point.gbs:.2f}" if point.value_bytes else "-",
        "P50 us": lambda point: f"{point.p50_us:.1f}",
        "P90 us": lambda point: f"{point.p90_us:.1f}",
        "P99 us": lambda point: f"{point.p99_us:.1f}",
    }
