import asyncio
import socket

import pytest

from inlay.core.errors import ArgumentError
from inlay.serve.openai_client import EndpointError, EventSplitter, OpenAIClient, Reply
from tests.unit.serve.bench.fake_openai import FakeOpenAI, serving


def test_events_are_cut_wherever_the_pieces_end() -> None:
    stream = b"data: one\n\n: comment\r\ndata:two\r\n\r\nevent: x\ndata: three\n\n"
    for size in (1, 2, 7, len(stream)):
        seen: list[bytes] = []
        splitter = EventSplitter(lambda data, now_s, seen=seen: seen.append(data))
        for start in range(0, len(stream), size):
            splitter.push(stream[start : start + size], 0.0)
        assert seen == [b"one", b"two", b"three"]


async def test_connections_are_kept_and_keys_sent() -> None:
    with serving(FakeOpenAI()) as fake:
        client = OpenAIClient(fake.url + "/v1", api_key="secret")
        assert await client.first_model() == "fake"
        (kept,) = client._idle
        assert (await client.get("/v1/models")).status == 200
        assert client._idle == [kept]
        await client.close()
    assert fake.keys == ["Bearer secret"] * 2


async def test_a_connection_closed_by_the_server_is_replaced() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    served = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        served += 1
        writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    async with server:
        client = OpenAIClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for _ in range(3):
            assert (await client.get("/")).json() == {}
        await client.close()
    assert served == 3


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


async def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        client = OpenAIClient(f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(EndpointError, match="Is the server running there"):
            await client.get("/")


async def test_something_else_there() -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"SSH-2.0-x\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    async with server:
        client = OpenAIClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(EndpointError, match="not an HTTP answer"):
            await client.get("/")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_a_url_must_be_one(url: str) -> None:
    with pytest.raises(ArgumentError, match="write for example"):
        OpenAIClient(url)


def test_errors_carry_the_servers_message() -> None:
    body = b'{"error": {"message": "no such model", "code": 404}}'
    with pytest.raises(EndpointError, match="HTTP 404: no such model"):
        Reply(404, {}, body).raise_for_status()
    with pytest.raises(EndpointError, match="HTTP 502: Bad Gateway"):
        Reply(502, {}, b"Bad Gateway").raise_for_status()
    with pytest.raises(EndpointError, match="expected JSON, got '<html>'"):
        Reply(200, {}, b"<html>").json()
