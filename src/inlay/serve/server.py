"""Runs the server: the port first, then the engine's process beside the imports, then HTTP.

The HTTP process never imports torch. Everything here is about order and about endings: a taken
port, an engine that does not start, a stop signal, an engine that dies.
"""

import asyncio
import contextlib
import gc
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.core.errors import EngineDiedError, InlayError
from inlay.serve.banner import banner, weights_line
from inlay.serve.config import ServeConfig
from inlay.serve.http_server import StopSignals, bind, http_server, shown_host
from inlay.serve.rate_line import RateLine

if TYPE_CHECKING:
    import uvicorn

    from inlay.engine.client import EngineClient
    from inlay.models.source import ModelSource
    from inlay.models.text import Text
    from inlay.serve.gate import Gate
    from inlay.serve.service import Service

_POLL_S = 0.1
_TALK_S = 5.0
"""A line is printed this often while the model loads."""


def run_server(config: ServeConfig) -> int:
    """Serve until a stop signal; returns the process's exit code (0).

    Prints a banner when ready.

    Raises:
        AddressInUseError: another process listens on the port.
        ConfigError: the chat template that is to be used cannot be.
        ModelError: the model cannot be found or loaded.
        EngineStartError: the engine's process did not become ready.
        EngineDiedError: the engine's process ended while serving; running requests were told.
    """
    started_s = time.monotonic()
    with bind(config.host, config.port) as listener:
        from inlay.models.source import resolve_model

        template = config.read_chat_template()
        name = config.engine.model
        progress = RateLine(f"fetching {name}", partial(print, flush=True))
        source = resolve_model(
            name,
            weight_format=config.engine.weight_format,
            offline=config.engine.offline,
            progress=progress,
        )
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, listener, source, template, started_s))


async def _serve(
    config: ServeConfig,
    listener: socket.socket,
    source: "ModelSource",
    template: str | None,
    started_s: float,
) -> int:
    from inlay.engine.client import EngineClient

    stop = StopSignals()
    host, port = listener.getsockname()[:2]
    url = f"http://{shown_host(config.host, host)}:{port}"
    print(f"loading {source.name} ...", flush=True)
    async with AsyncExitStack() as stack:
        stack.enter_context(stop.installed())
        engine_config = replace(
            config.engine,
            model=str(source.directory),
            weight_format=source.weight_format(config.engine.weight_format),
        )
        starting = asyncio.ensure_future(
            EngineClient.start(engine_config, timeout_s=config.start_timeout_s)
        )
        preparing = asyncio.ensure_future(asyncio.to_thread(_load_http_modules))
        stack.callback(preparing.cancel)
        loading = asyncio.ensure_future(_make_service(config, source, template, starting))
        stack.push_async_callback(_end, starting, loading)
        await preparing
        from inlay.serve.gate import Gate

        gate = Gate()
        server = await stack.enter_async_context(
            http_server(listener, gate, access_log=config.access_log)
        )
        if not await _loaded(loading, stop):
            return 0
        client, service = await loading
        from inlay.models.memory import give_back_freed
        from inlay.serve.app import create_app
        from inlay.serve.weights.updates import Updates

        updates = Updates(client, config.weights, source.directory, service.metrics)
        stack.callback(updates.close)
        app = create_app(service, config, updates=updates)
        await stack.enter_async_context(app.router.lifespan_context(app))
        gate.open(app)
        give_back_freed()
        gc.freeze()
        text = banner(
            url,
            service.name,
            client.info,
            client.load_progress,
            page=config.page,
            key=config.api_key is not None,
            start_s=time.monotonic() - started_s,
        )
        print(text, flush=True)
        await _until_over(client, stop, server)
        died = await _death(client)
        await _drain(config, gate, service, client, stop)
        if died is not None and not stop.asked.is_set():
            raise EngineDiedError(f"the server stopped because {died}")
        print("stopped", flush=True)
    return 0


def _load_http_modules() -> None:
    """Import what the HTTP side needs, while the engine's process does the same for the model."""
    import uvicorn  # noqa: F401

    import inlay.serve.app
    import inlay.serve.gate  # noqa: F401


async def _make_service(
    config: ServeConfig,
    source: "ModelSource",
    template: str | None,
    starting: "asyncio.Future[EngineClient]",
) -> "tuple[EngineClient, Service]":
    text = await asyncio.to_thread(_load_text, source.directory, template)
    client = await starting
    from inlay.serve.generation_config import sampling_defaults
    from inlay.serve.service import Service

    defaults = sampling_defaults(source.directory)
    return client, Service(client, text, config, defaults=defaults, model_name=source.name)


def _load_text(directory: Path, template: str | None) -> "Text":
    from inlay.models.text import Text

    return Text.load(directory, chat_template=template)


async def _loaded(
    loading: "asyncio.Future[tuple[EngineClient, Service]]", stop: StopSignals
) -> bool:
    """Wait for the model with a line now and then; False when told to stop instead."""
    asked = asyncio.ensure_future(stop.asked.wait())
    began_s = time.monotonic()
    try:
        while not loading.done() and not stop.asked.is_set():
            await asyncio.wait(
                (loading, asked), timeout=_TALK_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not loading.done() and not stop.asked.is_set():
                print(f"still loading, {time.monotonic() - began_s:.0f} s ...", flush=True)
    finally:
        asked.cancel()
    return loading.done()


async def _end(
    starting: "asyncio.Future[EngineClient]",
    loading: "asyncio.Future[tuple[EngineClient, Service]]",
) -> None:
    """Stop the engine's process, however far it came."""
    loading.cancel()
    starting.cancel()
    for task in (loading, starting):
        with contextlib.suppress(asyncio.CancelledError, InlayError):
            await task
    if starting.done() and not starting.cancelled() and starting.exception() is None:
        await starting.result().aclose()


async def _until_over(client: "EngineClient", stop: StopSignals, server: "uvicorn.Server") -> None:
    loading = not client.load_progress.over
    while client.alive and not stop.asked.is_set() and not server.should_exit:
        if loading and client.load_progress.over:
            loading = False
            print(weights_line(client.load_progress), flush=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.asked.wait(), _POLL_S)


async def _death(client: "EngineClient") -> str | None:
    """Why the engine's process ended, if it did."""
    if client.alive:
        return None
    try:
        await client.stats()
    except EngineDiedError as error:
        return str(error)
    return None


async def _drain(
    config: ServeConfig,
    gate: "Gate",
    service: "Service",
    client: "EngineClient",
    stop: StopSignals,
) -> None:
    """Refuse new requests, let running ones end for a while, then end them."""
    if client.alive:
        gate.close("the server is stopping")
        if service.active:
            running = f"running requests ({service.active}) have {config.drain_s:g} s to end"
            print(f"stopping: {running}", flush=True)
    else:
        gate.close("the engine's process ended and the server is stopping")
    deadline_s = time.monotonic() + config.drain_s
    while service.active and time.monotonic() < deadline_s and not stop.insisted.is_set():
        await asyncio.sleep(_POLL_S / 2)
    service.stopping = client.alive
    await client.aclose()
    deadline_s = time.monotonic() + 1.0
    while service.active and time.monotonic() < deadline_s:
        await asyncio.sleep(_POLL_S / 2)
