"""What the routes share: reading bodies, and turning errors and hang-ups into answers."""

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from inlay.serve.openai.errors import BodyTooLargeError, error_response
from inlay.serve.openai.sse import CLIENT_CLOSED
from inlay.serve.service import Service

REQUEST_ID = "X-Request-Id"
"""Header of a request's id: the client's, or else the one that a handler left in `request.state`.
The logs of all processes that the request passes have it."""

Handler = Callable[[Request], Awaitable[Response]]


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body.

    Raises:
        BodyTooLargeError: it is over the limit; a body announced as too large is not read.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        raise BodyTooLargeError(_too_large(limit))
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise BodyTooLargeError(_too_large(limit))
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(limit: int) -> str:
    return f"the request's body is over {limit} bytes, this server's limit (max_body_bytes)"


def answering(handler: Handler) -> Handler:
    """Turn what a handler raises into an error answer."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED)
        except Exception as error:
            return error_response(error)

    return answer


def counted(service: Service, handler: Handler) -> Handler:
    """`answering`, with the request's id in the answer's header, and count its status."""
    inner = answering(handler)

    async def answer(request: Request) -> Response:
        response = await inner(request)
        service.metrics.answered(response.status_code)
        request_id = request.headers.get(REQUEST_ID) or getattr(request.state, "request_id", "")
        if request_id:
            response.headers[REQUEST_ID] = request_id
        return response

    return answer
