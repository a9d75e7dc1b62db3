"""Server-sent events, and answers that stop when their client goes away."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inlay.serve.openai.errors import describe

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
CLIENT_CLOSED = 499
"""Status that is counted (never sent) when the client went away before the answer."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


def event(data: object) -> bytes:
    """One event of JSON data."""
    return b"data: " + _encode(data) + b"\n\n"


class EventStream(Response):
    """Sends events as they come, and closes their source when the client goes away.

    The first event is awaited before the status is sent, so a request that fails at once gets an
    ordinary error answer (raised to the caller by `start`). Later failures end the stream with an
    error event.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(None)
        self._events = events
        self._first = b""

    async def start(self) -> "EventStream":
        """Wait for the first event; raises what it raises."""
        self._first = await anext(self._events)
        return self

    async def close(self) -> None:
        """Stop the source."""
        await self._events.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer: the ASGI entry."""
        try:
            await while_connected(receive, self._pump(send))
        finally:
            await self.close()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            last = DONE
        except Exception as error:
            _, body, _ = describe(error)
            last = event(body) + DONE
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def while_connected(receive: Receive, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None after cancelling it because the client went away.

    To be called when the request's body has been read.
    """
    asking = asyncio.current_task()
    assert asking is not None
    gone = False

    def cancel(_: object) -> None:
        nonlocal gone
        gone = True
        asking.cancel()

    watch = asyncio.get_running_loop().create_task(_disconnected(receive))
    watch.add_done_callback(cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if gone and not asking.uncancel():
            return None
        raise
    finally:
        watch.remove_done_callback(cancel)
        watch.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def merged(sources: "list[AsyncGenerator[T]]") -> AsyncGenerator[T]:
    """Items of several sources as they come; all are closed when one fails or this is closed."""
    queue: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()

    async def drain(source: AsyncGenerator[T]) -> None:
        try:
            async with aclosing(source) as items:
                async for item in items:
                    queue.put_nowait((True, item))
        except Exception as error:
            queue.put_nowait((False, error))
        else:
            queue.put_nowait((False, None))

    tasks = [asyncio.ensure_future(drain(source)) for source in sources]
    try:
        left = len(tasks)
        while left:
            is_item, value = await queue.get()
            if is_item:
                yield value
            elif value is not None:
                raise value
            else:
                left -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
