"""What becomes of an engine's answers, whole and broken, over a real connection."""

import asyncio
import json

import pytest
from aiohttp import web

from inlay.connect.foreign.http import EngineHttp
from inlay.core.errors import (
    EndpointError,
    EngineDiedError,
    EngineError,
    OverloadedError,
    RequestError,
)

EVENT = b'data: {"n": 1}\n\n'


def run(handler, use):
    """Serve all paths by a handler, and use a client of it."""

    async def main():
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = site._server.sockets[0].getsockname()[:2]
        http = EngineHttp(f"http://{host}:{port}/", "e0", api_key="key")
        try:
            return await use(http)
        finally:
            await http.close()
            await runner.cleanup()

    return asyncio.run(main())


async def events_of(http):
    async with http.stream("/x", {"a": 1}, "r-0") as events:
        return [event async for event in events]


def streamed(*pieces, end=True):
    async def handler(request):
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for piece in pieces:
            await answer.write(piece)
        if not end:
            request.transport.close()
        return answer

    return handler


def refused(status, error):
    async def handler(request):
        return web.json_response(
            {"error": error} if isinstance(error, dict) else error, status=status
        )

    return handler


def test_events():
    pieces = [b": comment\n\n", EVENT[:5], EVENT[5:], EVENT, b"data: [DONE]\n\n"]
    assert run(streamed(*pieces), events_of) == [{"n": 1}, {"n": 1}]


def test_a_request_has_its_key_and_name():
    seen = {}

    async def handler(request):
        seen.update(
            key=request.headers["Authorization"],
            name=request.headers["X-Request-Id"],
            body=await request.json(),
        )
        return web.Response(body=b"data: [DONE]\n\n")

    run(handler, events_of)
    assert seen == {"key": "Bearer key", "name": "r-0", "body": {"a": 1}}


def test_long_lines():
    long = b"data: " + json.dumps({"n": "x" * 3_000_000}).encode() + b"\n\n"
    (found,) = run(streamed(long, b"data: [DONE]\n\n"), events_of)
    assert len(found["n"]) == 3_000_000


@pytest.mark.parametrize(
    ("handler", "kind", "words"),
    [
        (streamed(EVENT), EngineDiedError, "in the middle"),
        (streamed(EVENT, end=False), EngineDiedError, "was lost"),
        (streamed(b"data: {\n\n"), EngineError, "no JSON"),
        (streamed(b"data: 3\n\n"), EngineError, "no object"),
        (streamed(b'data: {"error": {"message": "no", "code": 400}}\n\n'), RequestError, "e0: no"),
        (streamed(b'data: {"error": {"message": "no"}}\n\n'), EngineError, "status 500"),
        (refused(400, {"message": "too long", "param": "prompt"}), RequestError, "too long"),
        (refused(404, "what"), RequestError, "what"),
        (refused(401, {"message": "key"}), EngineError, "key"),
        (refused(429, {"message": "busy"}), OverloadedError, "busy"),
        (refused(503, {"message": "busy"}), OverloadedError, "busy"),
        (refused(500, {"message": "oh"}), EngineError, "oh"),
    ],
)
def test_what_goes_wrong(handler, kind, words):
    with pytest.raises(kind, match=words) as caught:
        run(handler, events_of)
    assert type(caught.value) is kind
    if words == "too long":
        assert caught.value.param == "prompt"


def test_nobody_is_there():
    async def use(http):
        gone = EngineHttp("http://127.0.0.1:1", "e1")
        try:
            with pytest.raises(EngineDiedError, match="cannot be reached"):
                await gone.text("/health", 5)
            with pytest.raises(EngineDiedError, match="was lost"):
                await events_of(gone)
        finally:
            await gone.close()

    run(refused(200, "x"), use)


def test_short_questions():
    async def use(http):
        assert await http.json("/x", 5) == {"a": 1}
        with pytest.raises(EndpointError, match="in 0.05 s"):
            await http.json("/slow", 0.05)
        with pytest.raises(EndpointError, match="status 404") as caught:
            await http.text("/none", 5)
        assert caught.value.status == 404
        with pytest.raises(EndpointError, match="no JSON"):
            await http.json("/text", 5)

    async def handler(request):
        if request.path == "/slow":
            await asyncio.sleep(30)
        if request.path == "/none":
            return web.Response(status=404)
        return web.Response(text="what" if request.path == "/text" else '{"a": 1}')

    run(handler, use)
