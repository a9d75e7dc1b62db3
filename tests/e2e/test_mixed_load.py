"""200 requests with cancels, aborts, over-long and bad ones: nothing is lost or leaked."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.conftest import CONTEXT, PAGES
from tests.support.server import RunningServer

NUM_REQUESTS = 200
KINDS = ["whole", "stream", "completion", "batch", "close", "abort", "long", "bad", "wrong"]


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


class Load:
    """One run of mixed requests; counts how each kind ended."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.draw = random.Random(seed)
        self.ended: dict[str, int] = {}

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=self.url, timeout=60, limits=limits) as client:
            kinds = [self.draw.choice(KINDS) for _ in range(NUM_REQUESTS)]
            await asyncio.gather(*(self._one(client, kind, i) for i, kind in enumerate(kinds)))

    async def _one(self, client: httpx.AsyncClient, kind: str, i: int) -> None:
        await asyncio.sleep(self.draw.random() * 2)
        tokens = self.draw.randint(1, 40)
        words = "lantern bridge harbour " * self.draw.randint(1, 20)
        chat: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"{i} {words}"}],
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        match kind:
            case "whole":
                answer = await client.post("/v1/chat/completions", json=chat)
                assert answer.json()["usage"]["completion_tokens"] == tokens
            case "stream":
                answer = await client.post("/v1/chat/completions", json={**chat, "stream": True})
                events = answer.text.split("\n\n")
                assert events[-2] == "data: [DONE]"
                last = json.loads(events[-3].removeprefix("data: "))
                assert last["choices"][0]["finish_reason"] == "length"
                assert len(events) == tokens + 3
            case "completion":
                body = {"prompt": words, "max_tokens": tokens, "logprobs": 2, "echo": True}
                answer = await client.post("/v1/completions", json=body)
                assert answer.json()["choices"][0]["finish_reason"] in ("stop", "length")
            case "batch":
                body = {"prompt": ["a", words], "n": 2, "max_tokens": tokens}
                answer = await client.post("/v1/completions", json=body)
                assert len(answer.json()["choices"]) == 4
            case "close":
                body = {**chat, "stream": True, "max_tokens": 400}
                async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    async for _ in answer.aiter_lines():
                        if self.draw.random() < 0.2:
                            break
            case "abort":
                body = {**chat, "max_tokens": 400, "n": self.draw.randint(1, 3)}
                task = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
                await asyncio.sleep(self.draw.random() * 0.5)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            case "long":
                body = {"prompt": [5] * (CONTEXT + self.draw.randint(0, 100))}
                answer = await client.post("/v1/completions", json=body)
                assert answer.json()["error"]["code"] == "context_length_exceeded"
            case "bad":
                answer = await client.post("/v1/chat/completions", content=b'{"messages": [')
                assert answer.status_code == 400
            case "wrong":
                answer = await client.post("/v1/chat/completions", json={**chat, "top_p": "x"})
                assert answer.json()["error"]["param"] == "top_p"
        self.ended[kind] = self.ended.get(kind, 0) + 1


async def use_all_pages(server: RunningServer) -> None:
    """Prompts that fill the pool: a page takes memory when it is first used."""
    tokens = 2000
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        for number in range(16 * PAGES // tokens + 1):
            body = {"prompt": [100 + number] * tokens, "max_tokens": 1}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert server.wait_idle()["pages_free"] < 0.02 * PAGES


async def test_mixed_load(tiny_server: RunningServer) -> None:
    pids = (tiny_server.pid, tiny_server.engine_pid())
    await use_all_pages(tiny_server)
    before = tiny_server.wait_idle()
    memory = []
    for seed in range(2):
        load = Load(tiny_server.url, seed)
        await load.run()
        assert sum(load.ended.values()) == NUM_REQUESTS
        after = tiny_server.wait_idle()
        assert after["pages_free"] + after["pages_cached"] == (
            before["pages_free"] + before["pages_cached"]
        )
        memory.append([memory_kib(pid) for pid in pids])
    async with httpx.AsyncClient(base_url=tiny_server.url) as client:
        assert (await client.get("/health")).status_code == 200
    # The first run warms buffers and caches up; the second one must not need more.
    for first, second in zip(*memory, strict=True):
        assert second - first < 8 * 1024, memory
