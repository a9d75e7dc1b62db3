"""`inlay store master`: the process that knows where objects are."""

from pathlib import Path
from typing import Annotated

import typer

from inlay.serve.commands.options import ApiKey
from inlay.serve.commands.store_options import host_and_port


def store_master(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="For clients and nodes. Port 0: any free one.")
    ] = "127.0.0.1:50051",
    admin: Annotated[
        str, typer.Option(metavar="HOST:PORT|none", help="Metrics and questions over HTTP.")
    ] = "127.0.0.1:9003",
    api_key: ApiKey = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="16 to 64 bytes that clients and nodes must hold.",
            show_default="this user's on this host",
        ),
    ] = None,
    tenants: Annotated[
        Path | None,
        typer.Option(
            help='Several key spaces: a TOML file of tenant = "file of its token".',
            show_default=False,
        ),
    ] = None,
    etcd: Annotated[
        str | None,
        typer.Option(
            metavar="etcd://HOST:2379[,...]/CLUSTER",
            help="Elect one master among several processes.",
            show_default=False,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="How others reach --listen, for --etcd.",
            show_default="as --listen",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the epoch is kept without --etcd.",
            show_default="in the cache directory",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting, e.g. node_timeout_s=5. May be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Know where the objects of a store are, until Ctrl-C.

    Nodes tell a master what they hold, so one that was killed is started again
    and loses nothing. With --etcd, start two or more: one is the master, and
    another takes over when it ends.
    """
    from functools import partial

    from inlay.core.errors import ConfigError
    from inlay.core.overrides import apply_overrides
    from inlay.core.settings import read_settings
    from inlay.serve.store.config import MasterConfig
    from inlay.store.address import parse_cluster
    from inlay.store.master_server import MasterPolicy
    from inlay.store.tenants import DEFAULT_TENANT, Tenant, read_tenants, read_token

    if tenants is not None and token_file is not None:
        raise ConfigError("give either --token-file or --tenants, not both")
    if etcd is not None and state is not None:
        raise ConfigError("with --etcd the epoch is kept there: leave --state out")
    known = (
        read_tenants(tenants)
        if tenants is not None
        else (Tenant(DEFAULT_TENANT, read_token(token_file)),)
    )
    address = host_and_port(listen, "--listen")
    cluster = None if etcd is None else parse_cluster(etcd)
    if cluster is not None and address[1] == 0:
        raise ConfigError("--listen with port 0: others have to know where an elected master is")
    config = MasterConfig(
        listen=address,
        admin=None if admin == "none" else host_and_port(admin, "--admin"),
        api_key=api_key,
        cluster=cluster,
        advertise=advertise,
        state=state or read_settings().cache_dir / "store" / f"master-{address[1]}.json",
        tenants=known,
        policy=apply_overrides(MasterPolicy(), assignments or [], form="name=value"),
    )

    from inlay.serve.store.master import (
        run_master,  # after the checks: it imports the web framework
    )

    run_master(config, partial(print, flush=True))
