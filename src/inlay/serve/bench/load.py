"""Sends requests at their times and watches itself doing so.

Open loop: arrivals are a Poisson process that does not wait for answers. `concurrency` caps how
many requests are in flight; with an infinite rate that makes a closed loop. What the client itself
can take and what it was busy with is measured and reported, so that its own limits are not taken
for the server's.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inlay.core.errors import ConfigError, EndpointError
from inlay.serve.bench.records import RequestRecord
from inlay.serve.bench.statistics import percentile
from inlay.serve.openai_client import OpenAIClient

_PROBE_PERIOD_S = 0.02


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """When requests are sent.

    Attributes:
        request_rate: mean arrivals per second, or infinity for all at once.
        concurrency: most requests in flight; None for no cap.
    """

    request_rate: float = math.inf
    concurrency: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.request_rate > 0:
            raise ConfigError(f"--request-rate must be above 0 or inf, got {self.request_rate:g}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"--concurrency must be at least 1, got {self.concurrency}")


@dataclass(frozen=True, kw_only=True)
class ClientLoad:
    """How hard the measuring itself was.

    Attributes:
        events_per_s: token events received during the run.
        capacity_events_per_s: events per second this client can take at full load, measured just
            before the run on made-up events.
        cpu_fraction: CPU time of this process / duration, of one core.
        loop_lag_p99_s, loop_lag_max_s: how late a timer ran: the error of send times.
    """

    events_per_s: float
    capacity_events_per_s: float
    cpu_fraction: float
    loop_lag_p99_s: float
    loop_lag_max_s: float

    @property
    def is_bottleneck(self) -> bool:
        """Whether the figures may be the client's rather than the server's."""
        return self.cpu_fraction > 0.8 or self.events_per_s > 0.5 * self.capacity_events_per_s

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def arrival_times(config: LoadConfig, count: int) -> list[float]:
    """Seconds after the start at which each request is due; ascending, the first at 0."""
    if math.isinf(config.request_rate):
        return [0.0] * count
    draw = random.Random(f"{config.seed}/arrivals")
    times = [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + draw.expovariate(config.request_rate))
    return times


async def run_load(
    client: OpenAIClient,
    path: str,
    bodies: Sequence[dict[str, Any]],
    config: LoadConfig,
    on_done: Callable[[RequestRecord], None] = lambda record: None,
) -> tuple[list[RequestRecord], ClientLoad]:
    """Send every body to `path` at its time; failures are recorded, not raised.

    Args:
        on_done: called after each request, for a progress display.
    """
    capacity = await measure_capacity()
    encoded = [json.dumps(body).encode() for body in bodies]
    gate = asyncio.Semaphore(config.concurrency or len(encoded))
    lags: list[float] = []
    probe = asyncio.create_task(_probe_loop(lags))
    cpu_s, start_s = time.process_time(), time.perf_counter()
    records = [
        RequestRecord(index=index, due_s=start_s + due_s)
        for index, due_s in enumerate(arrival_times(config, len(encoded)))
    ]
    try:
        async with asyncio.TaskGroup() as tasks:
            for record, body in zip(records, encoded, strict=True):
                await _sleep_until(record.due_s)
                await gate.acquire()
                tasks.create_task(_send(client, path, body, record, gate, on_done))
    finally:
        probe.cancel()
    wall_s = time.perf_counter() - start_s
    events = sum(len(record.token_times_s) for record in records)
    lags = sorted(lags) or [0.0]
    return records, ClientLoad(
        events_per_s=events / wall_s,
        capacity_events_per_s=capacity,
        cpu_fraction=(time.process_time() - cpu_s) / wall_s,
        loop_lag_p99_s=percentile(lags, 99),
        loop_lag_max_s=lags[-1],
    )


async def _send(
    client: OpenAIClient,
    path: str,
    body: bytes,
    record: RequestRecord,
    gate: asyncio.Semaphore,
    on_done: Callable[[RequestRecord], None],
) -> None:
    record.sent_s = time.perf_counter()
    try:
        reply = await client.stream(path, body, record.on_event)
        reply.raise_for_status()
        if not record.token_times_s:
            record.error = record.error or "the answer held no token"
    except (EndpointError, ValueError) as error:
        record.error = str(error)
    finally:
        record.finished_s = time.perf_counter()
        gate.release()
        on_done(record)


async def _sleep_until(due_s: float) -> None:
    delay_s = due_s - time.perf_counter()
    if delay_s > 0:
        await asyncio.sleep(delay_s)


async def _probe_loop(lags: list[float]) -> None:
    """Note how late timers run."""
    while True:
        planned_s = time.perf_counter() + _PROBE_PERIOD_S
        await asyncio.sleep(_PROBE_PERIOD_S)
        lags.append(max(0.0, time.perf_counter() - planned_s))


async def measure_capacity(num_events: int = 3000) -> float:
    """Events per second that this client can take, at least.

    A made-up server in the same event loop sends single events over a loopback connection. What
    sending them costs is counted too, so the true limit is higher.
    """
    event = {
        "id": "cmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "a-model",
        "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
    }
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    chunk = b"%x\r\n%b\r\n" % (len(data), data)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(num_events):
            writer.write(chunk)
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    record = RequestRecord(index=0, due_s=0.0)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = OpenAIClient(f"http://127.0.0.1:{port}")
        await client.stream("/", b"{}", record.on_event)
        await client.close()
    times = record.token_times_s
    return (len(times) - 1) / (times[-1] - times[0])
