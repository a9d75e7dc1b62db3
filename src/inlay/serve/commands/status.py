"""`inlay status`: the processes of a deployment, or the instances behind an address."""

import asyncio
from typing import Annotated

import typer

from inlay.serve.commands.deployment_options import Wait, supervisor_of


def status(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|URL",
            help="Of the deployment; or the address of a server, http://HOST:PORT.",
            show_default="the only deployment that runs",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    api_key: Annotated[str | None, typer.Option(help="The server's key, with URL.")] = None,
    wait: Wait = 5.0,
) -> None:
    """Show what a deployment's processes do, and where it is reached; or what a server does."""
    import json

    from msgspec.structs import asdict
    from rich.console import Console

    from inlay.cluster.control import Status, StatusRequest
    from inlay.cluster.control_client import ask
    from inlay.serve.cluster.status_table import server_table, status_table

    if name is not None and "://" in name:
        body = asyncio.run(_ask_server(name, api_key, wait))
        if as_json:
            print(json.dumps(json.loads(body), indent=2))
        else:
            Console().print(server_table(name, body))
        return
    found = ask(supervisor_of(name).control, StatusRequest(), timeout_s=wait)
    assert isinstance(found, Status)
    if as_json:
        processes = [asdict(one) for one in found.processes]
        print(json.dumps({**asdict(found), "processes": processes}, indent=2))
    else:
        Console().print(status_table(found))


async def _ask_server(url: str, api_key: str | None, timeout_s: float) -> bytes:
    from inlay.serve.openai_client import OpenAIClient

    client = OpenAIClient(url, api_key=api_key, timeout_s=timeout_s)
    try:
        reply = await client.get("/cluster/status")
    finally:
        await client.close()
    reply.raise_for_status()
    return reply.body
