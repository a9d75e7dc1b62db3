"""The metrics of a node's process over HTTP."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inlay.serve.guard import KeyGuard
from inlay.serve.http_server import http_server


@contextmanager
def serving_metrics(
    listener: socket.socket, collector: Collector, api_key: str | None
) -> Iterator[None]:
    """Answer `/metrics`, and `/health`, on a thread of its own inside this block.

    Nothing is counted or asked while nobody reads them.
    """
    registry = CollectorRegistry()
    registry.register(collector)

    async def metrics(request: Request) -> Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def health(request: Request) -> Response:
        return Response(status_code=200)

    app = Starlette(routes=[Route("/metrics", metrics), Route("/health", health)])
    if api_key is not None:
        app.add_middleware(KeyGuard, api_key=api_key)
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with http_server(listener, app):
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
