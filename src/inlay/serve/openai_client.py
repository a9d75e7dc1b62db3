"""A small HTTP/1.1 client for OpenAI endpoints, made for measuring.

Every piece of a stream is stamped in the callback that receives it from the socket, before
anything is parsed, and handed on without a task switch. A general client stamps when its consumer
gets to run, which under load adds the client's own delay to the server's times. Parsing is left to
httptools, TLS and sockets to asyncio. Knows SSE framing; knows nothing of what events mean.
"""

import asyncio
import json
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import httptools

from inlay import __version__
from inlay.core.errors import ArgumentError, InlayError

EventSink = Callable[[bytes, float], None]


class EndpointError(InlayError):
    """A server could not be reached, broke off, or answered with an error.

    Attributes:
        status: HTTP status, or None where there was no answer.
    """

    code: ClassVar[str] = "endpoint_error"

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Reply:
    """An answer. Of a stream with status 200, `body` is empty: the events took it."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            EndpointError: it is something else.
        """
        try:
            return json.loads(self.body)
        except ValueError:
            start = self.body[:80].decode(errors="replace")
            raise EndpointError(f"expected JSON, got {start!r}", self.status) from None

    def raise_for_status(self) -> None:
        """Raise an `EndpointError` with the server's own message unless the status is 200."""
        if self.status == 200:
            return
        text = self.body.decode(errors="replace").strip()
        try:
            error = json.loads(text)
            error = error.get("error", error)
            text = str(error.get("message", error) if isinstance(error, dict) else error)
        except (ValueError, AttributeError):
            text = text[:200]
        raise EndpointError(f"HTTP {self.status}: {text or 'no message'}", self.status)


class EventSplitter:
    """Cuts a body that arrives in pieces into the data of its server-sent events."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._rest = b""

    def push(self, data: bytes, now_s: float) -> None:
        """Hand every complete `data:` line to the sink."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._sink(line[5:].strip(), now_s)


class _Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._reply = Reply()
        self._parts: list[bytes] = []
        self._splitter: EventSplitter | None = None
        self._sink: EventSink | None = None
        self._done: asyncio.Future[Reply] | None = None
        self._now_s = 0.0
        self.started = False
        self.reusable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.reusable = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if self._done is not None and not self._done.done():
            headers = self._reply.headers
            if self._reply.status and not {"content-length", "transfer-encoding"} & headers.keys():
                self.on_message_complete()  # a body that ends with the connection
                return
            reason = f": {exc}" if exc else ""
            self._done.set_exception(EndpointError(f"the server closed the connection{reason}"))

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        if self._done is None or self._done.done():
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._done.set_exception(EndpointError(f"not an HTTP answer: {error}"))
            self.close()
        except Exception as error:  # a sink failed: the caller should see that, not the loop
            if not self._done.done():
                self._done.set_exception(error)
            self.close()

    # Called by the parser.

    def on_message_begin(self) -> None:
        self.started = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        self.reusable = self._parser.should_keep_alive()
        if self._sink is not None and self._reply.status == 200:
            self._splitter = EventSplitter(self._sink)

    def on_body(self, body: bytes) -> None:
        if self._splitter is not None:
            self._splitter.push(body, self._now_s)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self._reply.body = b"".join(self._parts)
        if self._done is not None and not self._done.done():
            self._done.set_result(self._reply)

    # Called by the client.

    async def exchange(self, request: bytes, sink: EventSink | None) -> Reply:
        """Send a request and wait for the whole answer."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._reply, self._parts = Reply(), []
        self._splitter, self._sink, self.started = None, sink, False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._sink = self._splitter = None

    def close(self) -> None:
        """Close now; the server sees it and stops working on the request."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()


class OpenAIClient:
    """Requests to one server over kept connections. Not thread-safe: for one event loop."""

    def __init__(
        self, base_url: str, *, api_key: str | None = None, timeout_s: float = 3600.0
    ) -> None:
        """Args: base_url: `http://host:port`, with or without a trailing `/v1`."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ArgumentError(f"--url {base_url}: write for example http://127.0.0.1:8000")
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = urlsplit(self.base_url).path
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []

    async def get(self, path: str) -> Reply:
        """GET; any status."""
        return await self._send("GET", path, None, None)

    async def post(self, path: str, body: dict[str, Any]) -> Reply:
        """POST JSON and collect the answer; any status."""
        return await self._send("POST", path, json.dumps(body).encode(), None)

    async def stream(self, path: str, body: bytes, sink: EventSink) -> Reply:
        """POST JSON text and hand the data of each event to `sink` as it arrives.

        Args:
            sink: called as `sink(data, time.perf_counter() of its arrival)`; the last event of
                OpenAI servers is `[DONE]`. It must be quick.

        Raises:
            EndpointError: no connection, a broken one, or no answer in time.
        """
        return await self._send("POST", path, body, sink)

    async def first_model(self) -> str:
        """The name of the model that the server serves.

        Raises:
            EndpointError: the server cannot be reached, or lists none.
        """
        reply = await self.get("/v1/models")
        reply.raise_for_status()
        listed = reply.json()
        data = listed.get("data") if isinstance(listed, dict) else None
        if not data:
            raise EndpointError(f"{self.base_url}/v1/models lists no model; name one with --model")
        return str(data[0]["id"])

    async def close(self) -> None:
        """Close kept connections."""
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)

    async def _send(
        self, method: str, path: str, body: bytes | None, sink: EventSink | None
    ) -> Reply:
        request = self._head(method, path, body) + (body or b"")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(request, sink)
        except TimeoutError:
            raise EndpointError(
                f"{self.base_url}{path}: no complete answer within {self._timeout_s:g} s"
            ) from None

    async def _exchange(self, request: bytes, sink: EventSink | None) -> Reply:
        """One exchange; on a fresh connection if a kept one turns out to be closed."""
        while True:
            kept = self._take_idle()
            connection = kept or await self._connect()
            try:
                reply = await connection.exchange(request, sink)
            except EndpointError:
                if kept is not None and not connection.started:
                    continue
                raise
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.close()
            return reply

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                _Connection, self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise EndpointError(
                f"cannot reach {self.base_url}: {reason}. Is the server running there?"
            ) from None
        return connection

    def _head(self, method: str, path: str, body: bytes | None) -> bytes:
        """Request line and headers."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = [
            f"{method} {self._prefix}{path} HTTP/1.1",
            f"Host: {host}:{self._port}",
            f"User-Agent: inlay/{__version__}",
            "Accept: application/json, text/event-stream",
        ]
        if self._api_key is not None:
            lines.append(f"Authorization: Bearer {self._api_key}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
