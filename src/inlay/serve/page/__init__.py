"""The chat page at `/`: a window on one engine, for people who have just started it.

Talks to `Service` in the server's process. Everything it shows comes from the server itself; it
loads nothing from outside. `app` mounts it, `view` is the page, `choice` says who answers, `side`
is one of those, `thread` a question and `answer` an answer; `conversation`, `figures`, `inside`,
`markdown`, `notices` and `prompts` are plain data and text.
"""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from starlette.applications import Starlette
from starlette.routing import Match, Mount
from starlette.types import Receive, Scope, Send

from inlay.serve.config import ServeConfig
from inlay.serve.dashboard.source import StatusSource
from inlay.serve.gate import Gate
from inlay.serve.service import Service

__all__ = ["Pages"]

_log = logging.getLogger(__name__)

_LOAD_S = 30.0


class Pages:
    """The chat page at `/` and the dashboard at `/dashboard` of one application.

    They are loaded when a browser first asks for one of them; that request waits one to two
    seconds. A server that no browser visits takes 40 MiB less. The API never waits for them.

    Attributes:
        mount: the route to them, behind all others.
    """

    def __init__(self, service: Service, config: ServeConfig, status: StatusSource) -> None:
        self._service, self._config, self._status = service, config, status
        self._gate = Gate(_LOAD_S, methods=("GET", "HEAD"))
        self._wanted, self._over = asyncio.Event(), asyncio.Event()
        self.mount = _PageMount("/", app=self._show)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Serve the pages inside this block, from the first request for one of them on."""
        serving = asyncio.create_task(self._serve())
        try:
            yield
        finally:
            self._over.set()
            self._wanted.set()
            await serving

    async def _show(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._wanted.set()
        await self._gate(scope, receive, send)

    async def _serve(self) -> None:
        """Load the pages once one is asked for, and serve them until `lifespan` ends.

        Cost: imports NiceGUI, more than half a second, in a thread. Where that fails, requests for
        pages are answered with 503 and the reason.
        """
        await self._wanted.wait()
        if self._over.is_set():
            return
        try:
            page = await asyncio.to_thread(import_module, "inlay.serve.page.app")
            async with page.served(self._service, self._config, self._status) as pages:
                gc.freeze()  # as at the start: no collection walks over NiceGUI's modules
                self._gate.open(pages)
                await self._over.wait()
        except Exception as error:
            _log.exception("the chat page and the dashboard could not be loaded")
            self._gate.close(f"the page could not be loaded: {error}; the server's log says more")


class _PageMount(Mount):
    """A mount at `/` that takes the pages' own paths only; all others are the API's to answer."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope.get("path", "")
        if path in ("", "/", "/dashboard", "/favicon.ico") or path.startswith(
            ("/_nicegui/", "/_nicegui_ws/")
        ):
            return super().matches(scope)
        return Match.NONE, {}
