"""The ASGI entry while the application is not there: before the model is loaded, and after."""

import asyncio
import contextlib
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from inlay.serve.openai.errors import NotReadyError, error_response


class Gate:
    """Passes requests on to the application; without one, or once closed, answers 503.

    Args:
        wait_s: how long a request waits for the application before it is refused.
        methods: of those that wait; others are refused at once.

    Attributes:
        refusal: why requests are refused without it.
    """

    def __init__(self, wait_s: float = 0.0, methods: Collection[str] = ("POST",)) -> None:
        self.refusal = "the model is still being loaded: try again in a few seconds"
        self._wait_s = wait_s
        self._methods = methods
        self._app: ASGIApp | None = None
        self._settled = asyncio.Event()

    def open(self, app: ASGIApp) -> None:
        """The application is ready."""
        self._app = app
        self._settled.set()

    def close(self, refusal: str) -> None:
        """Refuse requests from now on; those that were let in go on."""
        self._app, self.refusal = None, refusal
        self._settled.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if self._app is None and scope.get("method") in self._methods:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), self._wait_s)
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await error_response(NotReadyError(self.refusal))(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1013, "reason": "not ready"})
