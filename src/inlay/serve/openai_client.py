"""Asks OpenAI endpoints over aiohttp, for `inlay bench serve` and `inlay chat --url`.

Each piece of a stream is stamped as soon as it is read, before anything in it is parsed. Knows how
server-sent events are framed, not what they mean. Imported by the commands that ask a server only.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from inlay import __version__
from inlay.core.errors import ArgumentError, EndpointError

EventSink = Callable[[bytes, float], None]

# Below the 5 s after which uvicorn and others close: a POST on a connection just closed would fail.
_KEEP_IDLE_S = 4.0


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. Of a stream with status 200, `body` is empty: the events took it."""

    status: int
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON; raises an `EndpointError` if it is something else."""
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


class OpenAIClient:
    """Requests to one server, any number at once. Made, used and closed in one event loop."""

    def __init__(
        self, base_url: str, *, api_key: str | None = None, timeout_s: float = 3600.0
    ) -> None:
        """Args: base_url: `http://host:port`, with or without a trailing `/v1`."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ArgumentError(f"--url {base_url}: write for example http://127.0.0.1:8000")
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        headers = {"User-Agent": f"inlay/{__version__}", "Accept-Encoding": "identity"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=30),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def get(self, path: str) -> Reply:
        """GET; any status."""
        return await self._send("GET", path)

    async def post(self, path: str, body: dict[str, Any]) -> Reply:
        """POST JSON and collect the answer; any status."""
        return await self._send("POST", path, json.dumps(body).encode())

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
        """Close all connections."""
        await self._session.close()

    async def _send(
        self, method: str, path: str, body: bytes | None = None, sink: EventSink | None = None
    ) -> Reply:
        url = self.base_url + path
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if sink is None or response.status != 200:
                    return Reply(response.status, await response.read())
                rest = b""
                async for data in response.content.iter_any():
                    now_s = time.perf_counter()
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data:"):
                            sink(line[5:].strip(), now_s)
                return Reply(response.status)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            reason = getattr(error, "os_error", error)
            raise EndpointError(
                f"cannot reach {self.base_url}: {reason}. Is the server running there?"
            ) from None
        except TimeoutError:
            raise EndpointError(f"{url}: no complete answer within {self._timeout_s:g} s") from None
        except aiohttp.ClientResponseError:
            raise EndpointError(f"{url}: not an HTTP answer") from None
        except aiohttp.ClientError as error:
            raise EndpointError(f"{url}: the answer broke off: {error}") from None
