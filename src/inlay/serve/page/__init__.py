"""The chat page at `/`: a window on one engine, for people who have just started it.

Talks to `Service` in the server's process. Everything it shows comes from the server itself; it
loads nothing from outside. `app` mounts it, `view` is the page, `choice` says who answers, `side`
is one of those, `thread` a question and `answer` an answer; `conversation`, `figures`, `inside`,
`markdown`, `notices` and `prompts` are plain data and text.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from starlette.applications import Starlette
from starlette.routing import Match, Mount
from starlette.types import Scope

from inlay.serve.config import ServeConfig
from inlay.serve.dashboard.source import StatusSource
from inlay.serve.gate import Gate
from inlay.serve.service import Service

__all__ = ["Pages"]

_LOAD_S = 30.0


class Pages:
    """The chat page at `/` and the dashboard at `/dashboard` of one application.

    Whoever asks for one before `lifespan` has loaded them waits for that; the API does not.

    Attributes:
        mount: the route to them, behind all others.
    """

    def __init__(self, service: Service, config: ServeConfig, status: StatusSource) -> None:
        self._service, self._config, self._status = service, config, status
        self._gate = Gate(_LOAD_S, method="GET")
        self.mount = _PageMount("/", app=self._gate)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Load them, and serve them inside this block.

        Cost: imports NiceGUI, more than half a second, in a thread.
        """
        page = await asyncio.to_thread(import_module, "inlay.serve.page.app")
        async with page.served(self._service, self._config, self._status) as pages:
            self._gate.open(pages)
            yield


class _PageMount(Mount):
    """A mount at `/` that takes the pages' own paths only; all others are the API's to answer."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope.get("path", "")
        if path in ("", "/", "/dashboard", "/favicon.ico") or path.startswith(
            ("/_nicegui/", "/_nicegui_ws/")
        ):
            return super().matches(scope)
        return Match.NONE, {}
