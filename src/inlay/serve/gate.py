"""The ASGI entry while the application is not there: before the model is loaded, and after."""

from starlette.types import ASGIApp, Receive, Scope, Send

from inlay.serve.openai.errors import NotReadyError, error_response


class Gate:
    """Passes requests on to `app`; without one, or once closed, answers 503.

    Attributes:
        app: the application, when it is ready.
        refusal: why requests are refused without it; setting `app` to None closes the gate.
    """

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self.refusal = "the model is still being loaded: try again in a few seconds"

    def close(self, refusal: str) -> None:
        """Refuse requests from now on; those that were let in go on."""
        self.app, self.refusal = None, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await error_response(NotReadyError(self.refusal))(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1013, "reason": "not ready"})
