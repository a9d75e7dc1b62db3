import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inlay.core.errors import ArgumentError, EndpointError
from inlay.serve.openai_client import OpenAIClient, Reply
from tests.unit.serve.bench.fake_openai import FakeOpenAI, serving


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[OpenAIClient]:
    """A client of a server that sends these bytes, whatever is asked, and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        client = OpenAIClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            yield client
        finally:
            await client.close()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_are_cut_wherever_the_pieces_end(size: int) -> None:
    stream = b"data: one\n\n: comment\r\ndata:two\r\n\r\nevent: x\ndata: three\n\n"
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    seen: list[bytes] = []
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", *pieces) as client:
        await client.stream("/", b"", lambda data, now_s: seen.append(data))
    assert seen == [b"one", b"two", b"three"]


async def test_connections_are_kept_and_keys_sent() -> None:
    with serving(FakeOpenAI()) as fake:
        client = OpenAIClient(fake.url + "/v1", api_key="secret")
        assert await client.first_model() == "fake"
        assert (await client.get("/v1/models")).status == 200
        await client.close()
    assert fake.keys == ["Bearer secret"] * 2
    assert len(set(fake.peers)) == 1


async def test_a_connection_closed_by_the_server_is_replaced() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as client:
        for _ in range(3):
            assert (await client.get("/")).json() == {}


async def test_cancelling_closes_the_connection() -> None:
    with serving(FakeOpenAI(gap_s=0.05)) as fake:
        client = OpenAIClient(fake.url)
        body = b'{"prompt": "x", "max_tokens": 1000, "stream": true}'
        started = asyncio.Event()
        task = asyncio.create_task(
            client.stream("/v1/completions", body, lambda data, now_s: started.set())
        )
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(200):
            if fake.cancelled:
                break
            await asyncio.sleep(0.02)
        await client.close()
    assert fake.cancelled == 1


async def test_a_slow_answer_ends_with_a_message() -> None:
    with serving(FakeOpenAI(first_s=0.5)) as fake:
        client = OpenAIClient(fake.url, timeout_s=0.1)
        with pytest.raises(EndpointError, match="no complete answer within 0.1 s"):
            await client.stream(
                "/v1/completions",
                b'{"prompt": "x", "max_tokens": 1, "stream": true}',
                lambda data, now_s: None,
            )
        await client.close()


async def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        client = OpenAIClient(f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(EndpointError, match="Is the server running there"):
            await client.get("/")
        await client.close()


async def test_something_else_there() -> None:
    async with answering(b"SSH-2.0-x\r\n") as client:
        with pytest.raises(EndpointError, match="not an HTTP answer"):
            await client.get("/")


async def test_an_answer_that_breaks_off() -> None:
    for start in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{"):
        async with answering(start) as client:
            with pytest.raises(EndpointError, match="broke off"):
                await client.post("/", {})


async def test_a_failing_sink_is_the_callers_to_see() -> None:
    def fail(data: bytes, now_s: float) -> None:
        raise ZeroDivisionError

    async with answering(b"HTTP/1.1 200 OK\r\n\r\ndata: x\n\n") as client:
        with pytest.raises(ZeroDivisionError):
            await client.stream("/", b"", fail)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_a_url_must_be_one(url: str) -> None:
    with pytest.raises(ArgumentError, match="write for example"):
        OpenAIClient(url)


def test_errors_carry_the_servers_message() -> None:
    body = b'{"error": {"message": "no such model", "code": 404}}'
    with pytest.raises(EndpointError, match="HTTP 404: no such model"):
        Reply(404, body).raise_for_status()
    with pytest.raises(EndpointError, match="HTTP 502: Bad Gateway"):
        Reply(502, b"Bad Gateway").raise_for_status()
    with pytest.raises(EndpointError, match="expected JSON, got '<html>'"):
        Reply(200, b"<html>").json()
