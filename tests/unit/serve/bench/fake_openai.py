"""A made-up OpenAI server with a fixed pace, so that its times are known beforehand."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class FakeOpenAI:
    """Answers every prompt with `w0 w1 ...`, one token per event.

    Attributes:
        first_s, gap_s: time to the first token, and between tokens.
        usage: whether usage is reported; `tokenizer` whether /tokenize is served.
        fail_every: every so many-th streamed request gets a 503.
        answer_after: requests that must be there before any of them gets its first token.
    """

    first_s: float = 0.02
    gap_s: float = 0.005
    usage: bool = True
    tokenizer: bool = True
    fail_every: int = 0
    answer_after: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    peers: list[Any] = field(default_factory=list)
    running: int = 0
    peak: int = 0
    cancelled: int = 0
    url: str = ""

    def routes(self) -> list[Route]:
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/completions", self.generate, methods=["POST"]),
            Route("/v1/chat/completions", self.generate, methods=["POST"]),
        ]
        if self.tokenizer:
            routes.append(Route("/tokenize", self.tokenize, methods=["POST"]))
            routes.append(Route("/detokenize", self.detokenize, methods=["POST"]))
        return routes

    async def models(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization"))
        self.peers.append(request.client)
        return JSONResponse({"data": [{"id": "fake"}]})

    async def tokenize(self, request: Request) -> Response:
        words = (await request.json())["prompt"].split()
        return JSONResponse({"tokens": [len(word) for word in words], "count": len(words)})

    async def detokenize(self, request: Request) -> Response:
        tokens = (await request.json())["tokens"]
        return JSONResponse({"prompt": " ".join("x" * token for token in tokens)})

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        if not body.get("stream"):
            return JSONResponse({"choices": [{"text": "w0"}]})
        streamed = sum(1 for earlier in self.bodies if earlier.get("stream"))
        if self.fail_every and streamed % self.fail_every == 0:
            error = {"message": "the queue is full", "code": "overloaded"}
            return JSONResponse({"error": error}, status_code=503)
        return StreamingResponse(self.events(request, body), media_type="text/event-stream")

    async def events(self, request: Request, body: dict[str, Any]) -> Any:
        chat = request.url.path.endswith("chat/completions")
        self.running += 1
        self.peak = max(self.peak, self.running)
        done = False
        try:
            while self.peak < self.answer_after:
                await asyncio.sleep(0.01)
            await asyncio.sleep(self.first_s)
            for index in range(body["max_tokens"]):
                text = f"w{index} "
                part: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
                yield self.event({"choices": [{"index": 0, **part}]})
                await asyncio.sleep(self.gap_s)
            yield self.event({"choices": [{"index": 0, "finish_reason": "length"}]})
            if self.usage:
                yield self.event({"choices": [], "usage": self.counts(body)})
            yield "data: [DONE]\n\n"
            done = True
        finally:
            self.running -= 1
            self.cancelled += not done

    def counts(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body.get("prompt") or str(body.get("messages"))
        count = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        return {
            "prompt_tokens": count,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": 1},
        }

    @staticmethod
    def event(data: dict[str, Any]) -> str:
        return f"data: {json.dumps(data)}\n\n"


@contextmanager
def serving(fake: FakeOpenAI) -> Iterator[FakeOpenAI]:
    """Run the server in a thread, on a free port."""
    config = uvicorn.Config(
        Starlette(routes=fake.routes()), host="127.0.0.1", port=0, log_level="error", lifespan="off"
    )
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    fake.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield fake
    finally:
        server.should_exit = True
        thread.join(10)
        socket.close()
