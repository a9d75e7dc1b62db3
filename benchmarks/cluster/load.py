"""Sends completions at their times, with so little work that the cores are the servers'.

Requests are encoded before the first is sent. What comes is kept in pieces with their times and
read when all is over.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools
import uvloop

from benchmarks.cluster.workloads import Arrival
from inlay.serve.bench.records import RequestRecord

TIMEOUT_S = 120.0
_REFUSED = "HTTP 429"


@dataclass(slots=True)
class Reply:
    """What came back for one request, unread. Times are of `time.perf_counter`."""

    sent_s: float = 0.0
    status: int = 0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    finished_s: float = 0.0
    error: str | None = None


def play(
    url: str,
    arrivals: Sequence[Arrival],
    *,
    concurrency: int | None = None,
    stream: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> list[RequestRecord]:
    """Send each request at its time, greedy, and wait for all; what fails is recorded so.

    Args:
        concurrency: most requests at once; later ones wait. None for no cap.
        stream: without it a record has no times of tokens but that of the answer.

    Returns:
        A record for each; all times are in one clock, `due_s` by the arrival's time.
    """
    host = urlsplit(url).netloc
    requests = [_encode(host, arrival, stream) for arrival in arrivals]
    start_s, replies = uvloop.run(_play(host, requests, arrivals, concurrency, timeout_s))
    return [
        _read(index, start_s + arrival.time_s, reply)
        for index, (arrival, reply) in enumerate(zip(arrivals, replies, strict=True))
    ]


def refused(record: RequestRecord) -> bool:
    """Whether admission said no."""
    return record.error is not None and record.error.startswith(_REFUSED)


def answered(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The records.

    Raises:
        RuntimeError: one of them has no answer.
    """
    if failed := [record.error for record in records if not record.ok]:
        raise RuntimeError(f"{len(failed)} of {len(records)} requests failed: {failed[0]}")
    return list(records)


def _encode(host: str, arrival: Arrival, stream: bool) -> bytes:
    body = json.dumps(
        {
            "prompt": arrival.prompt,
            "max_tokens": arrival.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _play(
    host: str,
    requests: Sequence[bytes],
    arrivals: Sequence[Arrival],
    concurrency: int | None,
    timeout_s: float,
) -> tuple[float, list[Reply]]:
    replies = [Reply() for _ in requests]
    idle: list[_Connection] = []
    gate = asyncio.Semaphore(concurrency or len(requests))
    start_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for request, arrival, reply in zip(requests, arrivals, replies, strict=True):
            delay_s = start_s + arrival.time_s - time.perf_counter()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            await gate.acquire()
            task = tasks.create_task(_ask(host, idle, request, reply, timeout_s))
            task.add_done_callback(lambda _: gate.release())
    for connection in idle:
        connection.close()
    return start_s, replies


async def _ask(
    host: str, idle: "list[_Connection]", request: bytes, reply: Reply, timeout_s: float
) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            connection = idle.pop() if idle else await _connect(host)
            if connection.closed:
                connection = await _connect(host)
            if await connection.ask(request, reply):
                idle.append(connection)
    except (OSError, TimeoutError, httptools.HttpParserError) as error:
        reply.error = repr(error)
        reply.finished_s = time.perf_counter()


async def _connect(host: str) -> "_Connection":
    name, _, port = host.rpartition(":")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(_Connection, name, int(port))
    return connection


class _Connection(asyncio.Protocol):
    """One request after another."""

    def __init__(self) -> None:
        self.closed = False
        self._done: asyncio.Future[bool] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    async def ask(self, request: bytes, reply: Reply) -> bool:
        """Send a request and wait for the end of its answer; True if another one may follow."""
        self._reply = reply
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        reply.sent_s = time.perf_counter()
        self._transport.write(request)
        try:
            return await self._done
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.closed = True
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(error)

    def on_body(self, body: bytes) -> None:
        self._reply.pieces.append((self._now_s, body))

    def on_message_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        self._reply.finished_s = self._now_s
        if self._done is not None and not self._done.done():
            self._done.set_result(bool(self._parser.should_keep_alive()))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._end(error or ConnectionResetError("the answer broke off"))

    def _end(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


def _read(index: int, due_s: float, reply: Reply) -> RequestRecord:
    record = RequestRecord(
        index=index, due_s=due_s, sent_s=reply.sent_s, finished_s=reply.finished_s
    )
    if reply.error is not None or reply.status != 200:
        body = b"".join(piece for _, piece in reply.pieces)[:300].decode(errors="replace")
        record.error = reply.error or f"HTTP {reply.status}: {body}"
        return record
    if reply.pieces[0][1].startswith(b"{"):
        record.on_event(b"".join(piece for _, piece in reply.pieces), reply.finished_s)
    rest = b""
    for now_s, piece in reply.pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                record.on_event(line[5:].strip(), now_s)
    return record
