"""`inlay store node`: a process that contributes memory, and a disk, to a store."""

from typing import Annotated

import typer

from inlay.serve.commands.options import ApiKey
from inlay.serve.commands.store_options import (
    DEFAULT_MASTER,
    Master,
    Timeout,
    TokenFile,
    host_and_port,
)


def store_node(
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Of the shared memory of this host.")
    ] = "1GiB",
    disk: Annotated[
        str | None,
        typer.Option(
            metavar="PATH:SIZE",
            help="A directory for what memory has no room for, and how much of it, e.g. "
            "/var/cache/inlay:20GiB.",
            show_default="none",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="What the store knows it by; the same at each start.", show_default="the host's"
        ),
    ] = None,
    failure_domain: Annotated[
        str | None,
        typer.Option(help="Replicas of one object go to different ones.", show_default="the host"),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where other hosts reach it. Port 0: any free one."),
    ] = "127.0.0.1:0",
    metrics: Annotated[
        str, typer.Option(metavar="HOST:PORT|none", help="Prometheus metrics over HTTP.")
    ] = "none",
    api_key: ApiKey = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Keep nothing in memory when it ends.")
    ] = False,
    master: Master = DEFAULT_MASTER,
    token_file: TokenFile = None,
    timeout: Timeout = 30.0,
) -> None:
    """Contribute memory, and a disk, to a store until Ctrl-C.

    What lies there stays when the process ends, and is found again when it is
    started with the same --name and --memory, or the same --disk; meanwhile the
    store does without it. After inlay store drain the process ends by itself and
    leaves nothing.
    """
    import socket
    from functools import partial

    from inlay.core.units import parse_bytes
    from inlay.serve.store.node import NodeConfig, run_node
    from inlay.store import Disk
    from inlay.store.tenants import read_token

    config = NodeConfig(
        master=master,
        memory_bytes=parse_bytes(memory),
        disk=None if disk is None else Disk.parse(disk),
        name=socket.gethostname() if name is None else name,
        keep=not forget,
        failure_domain=failure_domain,
        listen=listen,
        token=read_token(token_file),
        timeout_s=timeout,
        metrics=None if metrics == "none" else host_and_port(metrics, "--metrics"),
        api_key=api_key,
    )
    run_node(config, partial(print, flush=True))
