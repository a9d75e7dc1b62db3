"""The administration of a master over HTTP: metrics, and what is stored where. Changes nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inlay import __version__
from inlay.core.errors import ArgumentError, RequestError, StoreUnavailable
from inlay.serve.guard import KeyGuard
from inlay.serve.openai.errors import json_response
from inlay.serve.openai.http import answering
from inlay.store.metrics import MasterCollector
from inlay.store.tenants import DEFAULT_TENANT

if TYPE_CHECKING:
    from inlay.serve.store.master import MasterProcess
    from inlay.store.survey import Survey

MAX_LIMIT = 10_000

T = TypeVar("T")


def create_admin_app(process: "MasterProcess") -> FastAPI:
    """The routes of one master's process, and the guard before them."""
    app = FastAPI(
        title="Inlay store", version=__version__, docs_url=None, redoc_url=None, openapi_url=None
    )
    routes = _Routes(process)
    for path, handler in (
        ("/health", routes.health),
        ("/role", routes.role),
        ("/metrics", routes.metrics),
        ("/nodes", routes.nodes),
        ("/segments", routes.segments),
        ("/objects", routes.objects),
        ("/explain", routes.explain),
    ):
        app.router.routes.append(Route(path, answering(handler), methods=["GET"]))
    if process.config.api_key is not None:
        app.add_middleware(KeyGuard, api_key=process.config.api_key)
    return app


class _Routes:
    """What the master's thread is asked waits in a thread of its own, so that no answer waits for
    another."""

    def __init__(self, process: "MasterProcess") -> None:
        self._process = process
        self._registry = CollectorRegistry()
        self._registry.register(MasterCollector(process.survey))

    async def health(self, request: Request) -> Response:
        """200 with an empty body while this process is master or ready to be, else 503."""
        if self._process.over.is_set():
            raise StoreUnavailable("this master has ended: start it again")
        return Response(status_code=200)

    async def role(self, request: Request) -> Response:
        """What this process is, and where the master is."""
        serving, seat = self._process.serving, self._process.seat
        if serving is not None:
            found = await self._survey()
            return json_response(
                {
                    "role": "master",
                    "master": serving.server.address,
                    "epoch": found.epoch,
                    "recovering": found.recovering,
                    "version": __version__,
                }
            )
        return json_response(
            {
                "role": "standby",
                "master": seat.address if seat else None,
                "epoch": seat.epoch if seat else None,
                "recovering": None,
                "version": __version__,
            }
        )

    async def metrics(self, request: Request) -> Response:
        """All metrics in the Prometheus text form."""
        text = await asyncio.to_thread(generate_latest, self._registry)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def nodes(self, request: Request) -> Response:
        """The nodes of all tenants."""
        found = await self._survey()
        return json_response({"nodes": [asdict(node) for node in found.nodes]})

    async def segments(self, request: Request) -> Response:
        """A tenant's segments."""
        server = self._process.server()
        found = await _of_tenant(request, server.segments)
        return json_response({"segments": found})

    async def objects(self, request: Request) -> Response:
        """Some keys with a prefix; go on with the cursor until it is 0."""
        server = self._process.server()
        limit = _number(request, "limit", 1000)
        if not 1 <= limit <= MAX_LIMIT:
            raise RequestError(f"limit must be in 1..{MAX_LIMIT}, got {limit}", "limit")
        prefix = request.query_params.get("prefix", "")
        cursor = _number(request, "cursor", 0)
        keys, cursor = await _of_tenant(request, server.keys, prefix, cursor, limit)
        return json_response({"keys": keys, "cursor": cursor})

    async def explain(self, request: Request) -> Response:
        """Why an object is where it is, as text."""
        server = self._process.server()
        key = request.query_params.get("key")
        if not key:
            raise RequestError("no key: ask /explain?key=KEY", "key")
        text = await _of_tenant(request, server.explain, key)
        return Response(text, media_type="text/plain")

    async def _survey(self) -> "Survey":
        found = await asyncio.to_thread(self._process.survey)
        if found is None:
            self._process.server()  # says who is master
            raise StoreUnavailable("this process is master no more")
        return found


async def _of_tenant(request: Request, ask: Callable[..., T], *args: object) -> T:
    """What the master's thread says of the tenant that is asked for."""
    tenant = request.query_params.get("tenant", DEFAULT_TENANT)
    try:
        return await asyncio.to_thread(ask, tenant, *args)
    except ArgumentError as error:  # there is no such tenant, or it cannot be one's name
        raise RequestError(str(error), "tenant") from None


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > 19:
        raise RequestError(f"{name} must be a whole number, got {text!r}", name)
    return int(text)
