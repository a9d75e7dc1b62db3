"""ASGI layers before the routes: the API key."""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from inlay.serve.openai.errors import AuthenticationError, error_response

_OPEN = ("/", "/dashboard", "/health", "/favicon.ico")
_OPEN_BELOW = ("/_nicegui/", "/_nicegui_ws/")
"""The chat page and the dashboard ask for the key themselves."""


class KeyGuard:
    """Lets requests pass that carry the key, as `Authorization: Bearer <key>` or `X-API-Key`."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] != "http" or self._is_open(scope) or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        error = AuthenticationError(
            "the API key is missing or wrong: send it as 'Authorization: Bearer <key>'"
        )
        response = error_response(error)
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        return path in _OPEN or path.startswith(_OPEN_BELOW) or scope["method"] == "OPTIONS"

    def _has_key(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization":
                kind, _, given = value.partition(b" ")
                if kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key):
                    return True
            elif name == b"x-api-key" and hmac.compare_digest(value.strip(), self._key):
                return True
        return False
