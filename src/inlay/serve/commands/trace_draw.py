"""`inlay trace draw`: a trace that is drawn from stated distributions, into a file."""

from typing import Annotated

import typer


def trace_draw(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="tool_and_agent, chat, agents, rag or long_documents; docs/guides/traces.md has "
            "what each is.",
        ),
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to; gzipped if it ends in .gz.")],
    requests: Annotated[int, typer.Option(help="How many.")] = 10_000,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second on average.", show_default="the workload's own"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another one draws others.")] = 0,
    block_tokens: Annotated[int, typer.Option(help="Tokens of a block.")] = 512,
) -> None:
    """Draw requests from stated distributions, and write them as Mooncake does.

    The same arguments write the same file. Memory holds the requests of sessions
    that have begun.
    """
    from pathlib import Path

    from inlay.core.errors import ConfigError
    from inlay.core.near_names import did_you_mean
    from inlay.sim.formats import write
    from inlay.sim.generators import WORKLOADS
    from inlay.sim.transform import head

    if workload not in WORKLOADS:
        meant = did_you_mean(workload, WORKLOADS)
        raise ConfigError(
            f"workload {workload!r} is none of {', '.join(WORKLOADS)}"
            f"{f'; {meant}' if meant else ''}"
        )
    if requests < 1:
        raise ConfigError(f"--requests is {requests}: it must be at least 1")
    if block_tokens < 1:
        raise ConfigError(f"--block-tokens is {block_tokens}: it must be at least 1")
    if seed < 0:
        raise ConfigError(f"--seed is {seed}: it must be 0 or more")
    make = WORKLOADS[workload]
    source = make() if rate is None else make(rate=rate)
    parts = source.parts(seed, block_tokens=block_tokens)
    write(head(parts, requests), Path(out).expanduser())
