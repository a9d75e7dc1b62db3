"""`inlay bench transfer`: rates and latencies of the transfer engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inlay.serve.commands.bench_points import print_points

if TYPE_CHECKING:
    from collections.abc import Callable

    from inlay.serve.bench.transfer import Point
    from inlay.transfer import TransferEngine


def bench_transfer(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="HOST:PORT",
            help="A target, started elsewhere with --listen.",
            show_default="one is started on this host",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Be the target: offer memory there until Ctrl-C. Port 0: any free one.",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="What a target offers.")] = "512MiB",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="16 to 64 bytes that both ends must hold.",
            show_default="this user's on this host",
        ),
    ] = None,
    transports: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Which may be used.", show_default="all"),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            help="blocks; or kv: 61 layers x 32 pages x (128 KiB + 16 KiB) at random places, all "
            "in one call."
        ),
    ] = "blocks",
    op: Annotated[str, typer.Option(help="read, write, or both: read,write.")] = "read,write",
    block_sizes: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Of blocks.")
    ] = "4KiB,64KiB,1MiB,16MiB,64MiB",
    batch: Annotated[int, typer.Option(help="Blocks per call.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads that call at the same time.")] = 1,
    seconds: Annotated[float, typer.Option(help="How long each point is measured.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the places of pages.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with stable field names.")
    ] = False,
) -> None:
    """Measure transfers between two engines: on this host, or between this one and a target.

    A call is submitted and awaited; each thread walks through its own part of
    the memory. Ctrl-C ends it after the call that runs; what was measured until
    then is printed.
    """
    from contextlib import ExitStack

    from inlay.core.errors import ConfigError
    from inlay.core.units import parse_bytes
    from inlay.serve.bench.transfer import (
        TransferBench,
        TransferBenchConfig,
        own_target,
    )
    from inlay.transfer import TransferEngine

    token = token_file.read_bytes() if token_file else None
    chosen = transports.split(",") if transports else None
    if listen is not None:
        if address is not None:
            raise ConfigError("give either the address of a target or --listen, not both")
        with TransferEngine(listen, token=token, transports=chosen) as engine:
            _be_target(engine, parse_bytes(memory), as_json)
        return
    config = TransferBenchConfig(
        workload=workload,
        ops=op.split(","),
        block_bytes=[parse_bytes(size) for size in block_sizes.split(",")],
        batch=batch,
        threads=threads,
        seconds=seconds,
        seed=seed,
    )
    with ExitStack() as stack:
        engine = stack.enter_context(
            TransferEngine(token=token if address else None, transports=chosen)
        )
        there = address or stack.enter_context(own_target(parse_bytes(memory), chosen))
        bench = TransferBench(engine, there, config)
        print_points(
            bench.run(),
            _columns(),
            status=f"measuring transfers with {there} ...",
            about={"target": there, "memory_bytes": bench.memory_bytes},
            as_json=as_json,
        )


def _be_target(engine: "TransferEngine", size: int, as_json: bool) -> None:
    """Offer memory until Ctrl-C or SIGTERM."""
    import json
    import sys

    from inlay.core.stop_signals import stop_signals
    from inlay.core.units import format_bytes
    from inlay.serve.bench.transfer import offer

    with stop_signals() as wait:
        segment = offer(engine, size)
        if as_json:
            print(json.dumps({"address": engine.address, "memory_bytes": size}), flush=True)
        else:
            print(f"target at {engine.address}, {format_bytes(size)}; Ctrl-C ends it", flush=True)
        wait()
    segment.deregister(cancel=True)
    sys.stdout.flush()


def _columns() -> "dict[str, Callable[[Point], str]]":
    from inlay.core.units import format_bytes

    return {
        "op": lambda point: point.op,
        "block": lambda point: (
            "128+16 KiB" if point.workload == "kv" else format_bytes(point.block_bytes)
        ),
        "batch": lambda point: str(point.batch),
        "threads": lambda point: str(point.threads),
        "calls": lambda point: str(point.calls),
        "GB/s": lambda point: f"{point.gbs:.2f}",
        "P50 us": lambda point: f"{point.p50_us:.1f}",
        "P90 us": lambda point: f"{point.p90_us:.1f}",
        "P99 us": lambda point: f"{point.p99_us:.1f}",
    }
