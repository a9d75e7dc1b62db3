"""HTTP with one engine: short questions, and streams of events."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from inlay.core.errors import (
    EndpointError,
    EngineDiedError,
    EngineError,
    InlayError,
    OverloadedError,
    RequestError,
)

_CONNECT_S = 5.0
_HALF_LINE_BYTES = 4 << 20  # aiohttp takes lines of twice its buffer
_KEEP_IDLE_S = 4.0  # below the 5 s after which servers close
_MAX_TEXT = 500


class EngineHttp:
    """Connections to one engine, on the running event loop.

    Args:
        url: of its server.
        name: of the engine, for messages.
        api_key: that it wants.
    """

    def __init__(self, url: str, name: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._name = name
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_IDLE_S),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            read_bufsize=_HALF_LINE_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Leave; streams end."""
        await self._session.close()

    async def text(self, path: str, timeout_s: float) -> str:
        """What a GET gives.

        Raises:
            EngineDiedError: it cannot be reached.
            EndpointError: no answer in time, or another one than 200.
        """
        _, text = await self._ask("GET", path, None, timeout_s)
        return text

    async def json(self, path: str, timeout_s: float, body: Any = None) -> Any:
        """The JSON of a GET, or a POST where there is a body. Raises as `text`."""
        method = "GET" if body is None else "POST"
        _, text = await self._ask(method, path, body, timeout_s)
        try:
            return json.loads(text)
        except ValueError:
            raise EndpointError(f"{self.url}{path} answered with what is no JSON") from None

    async def _ask(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, str]:
        where = f"{self.url}{path}"
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        try:
            async with self._session.request(method, where, json=body, timeout=timeout) as answer:
                text = await answer.text()
        except TimeoutError:
            raise EndpointError(f"{where} did not answer in {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineDiedError(f"{where} cannot be reached ({_words(error)})") from None
        if answer.status != 200:
            raise EndpointError(
                f"{where} answered with status {answer.status}: {text[:_MAX_TEXT]}", answer.status
            )
        return answer.status, text

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[AsyncGenerator[dict[str, Any]]]:
        """Post a body; the events of the answer. Leaving early ends the request there.

        Raises:
            RequestError: the engine refuses it as written.
            OverloadedError: it has no room.
            EngineDiedError: it is not there, or was lost on the way.
            EngineError: it failed.
        """
        try:
            async with self._session.post(
                self.url + path, json=body, headers={"X-Request-Id": request_id}
            ) as answer:
                if answer.status != 200:
                    raise self._refusal(answer.status, await answer.text())
                events = self._events(answer.content)
                try:
                    yield events
                finally:
                    await events.aclose()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineDiedError(f"{self._name} was lost ({_words(error)})") from None

    async def _events(self, content: aiohttp.StreamReader) -> AsyncGenerator[dict[str, Any]]:
        while line := await self._line(content):
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            try:
                event = json.loads(data)
            except ValueError:
                raise EngineError(f"{self._name} sent an event that is no JSON") from None
            if not isinstance(event, dict):
                raise EngineError(f"{self._name} sent an event that is no object")
            if (error := event.get("error")) is not None:
                raise self._failure(error)
            yield event
        raise EngineDiedError(f"{self._name} ended its answer in the middle")

    async def _line(self, content: aiohttp.StreamReader) -> bytes:
        """The next line; empty at the end."""
        try:
            return await content.readline()
        except ValueError as error:
            raise EngineError(f"{self._name} sent a line that is too long ({error})") from None

    def _failure(self, error: Any) -> InlayError:
        """What an error within a stream is."""
        code = error.get("code") if isinstance(error, dict) else None
        return self._refusal(code if isinstance(code, int) else 500, json.dumps({"error": error}))

    def _refusal(self, status: int, text: str) -> InlayError:
        message, param = _reason(text)
        said = f"{self._name}: {message}"
        if status in (429, 503):
            return OverloadedError(said)
        if 400 <= status < 500 and status not in (401, 403):
            return RequestError(said, param)
        return EngineError(f"{said} (status {status})")


def _reason(text: str) -> tuple[str, str | None]:
    """Message and parameter of an error in OpenAI's form, or the text itself."""
    try:
        error = json.loads(text)
        error = error.get("error", error)
        return str(error["message"])[:_MAX_TEXT], error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        return text[:_MAX_TEXT], None


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
