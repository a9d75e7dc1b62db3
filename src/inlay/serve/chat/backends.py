"""Where answers come from: an engine of our own, or a server somewhere."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from inlay.core.errors import EndpointError, RequestError
from inlay.serve.chat.timing import AnswerTiming

if TYPE_CHECKING:
    from inlay.serve.local_engine import LocalEngine
    from inlay.serve.openai_client import OpenAIClient


@dataclass(frozen=True)
class Piece:
    """New text of an answer, or of the thinking before it."""

    content: str = ""
    reasoning: str = ""


class Backend(Protocol):
    """Something that answers."""

    title: str

    def answer(
        self, messages: list[dict[str, Any]], options: dict[str, Any], timing: AnswerTiming
    ) -> AsyncIterator[Piece]:
        """Stream an answer and fill in its timing. Closing the iterator stops the answer."""
        ...

    async def stats(self) -> list[str]:
        """Lines about the engine, for /stats."""
        ...

    async def close(self) -> None:
        """Let go of the engine or the connections."""
        ...


class LocalBackend:
    """An engine in a process of our own; several of them may share one."""

    def __init__(self, engine: "LocalEngine", model: str | None = None) -> None:
        """Answer as the model, or as one of the engine's adapters."""
        self._engine = engine
        self._model = model
        self.title = engine.title

    async def answer(
        self, messages: list[dict[str, Any]], options: dict[str, Any], timing: AnswerTiming
    ) -> AsyncIterator[Piece]:
        """Stream an answer."""
        from inlay.serve.events import ChatDelta, ChatEnd, ChatStart
        from inlay.serve.openai.protocol import ChatRequest

        body = ChatRequest(model=self._model, messages=messages, **options)
        async with aclosing(self._engine.service.chat(body)) as events:
            async for event in events:
                if isinstance(event, ChatStart):
                    timing.prompt_tokens = event.prompt_tokens
                    timing.cached_tokens = event.cached_tokens
                elif isinstance(event, ChatDelta):
                    if event.token_ids:
                        timing.saw_tokens(len(event.token_ids))
                    call = event.tool_call.arguments if event.tool_call else ""
                    yield Piece(event.content + call, event.reasoning)
                elif isinstance(event, ChatEnd):
                    timing.output_tokens = event.usage.completion_tokens

    async def stats(self) -> list[str]:
        """Pages and totals of the engine."""
        stats = await self._engine.client.stats()
        return [
            f"pages: {stats.pages_free} free of {stats.pages_total}, {stats.pages_cached} cached",
            f"engine: {stats.generated_tokens} tokens in {stats.steps} steps, "
            f"{stats.step_busy_s:.2f} s busy",
        ]

    async def close(self) -> None:
        """End the engine's process."""
        await self._engine.close()


class ServerBackend:
    """A running OpenAI-compatible server."""

    def __init__(self, client: "OpenAIClient", model: str) -> None:
        self._client = client
        self._model = model
        self.title = f"{model} at {client.base_url}"

    async def answer(
        self, messages: list[dict[str, Any]], options: dict[str, Any], timing: AnswerTiming
    ) -> AsyncIterator[Piece]:
        """Stream an answer."""
        body = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }
        events: asyncio.Queue[bytes | None] = asyncio.Queue()
        request = asyncio.create_task(
            self._client.stream(
                "/v1/chat/completions",
                json.dumps(body).encode(),
                lambda data, _: events.put_nowait(data),
            )
        )
        request.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (data := await events.get()) is not None:
                if data != b"[DONE]" and (piece := _read_event(data, timing)) is not None:
                    yield piece
            reply = await request
            if reply.status != 200:
                try:
                    reply.raise_for_status()
                except EndpointError as error:
                    raise RequestError(str(error)) from None
        finally:
            request.cancel()

    async def stats(self) -> list[str]:
        """Nothing: a server's figures are at its /metrics."""
        return [f"the server's figures: {self._client.base_url}/metrics"]

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()


def _read_event(data: bytes, timing: AnswerTiming) -> Piece | None:
    """The piece of text in a streamed event; counts go to `timing`."""
    event = json.loads(data)
    if event.get("error"):
        error = event["error"]
        raise RequestError(str(error.get("message") if isinstance(error, dict) else error))
    piece = None
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content = delta.get("content") or ""
        if content or reasoning:
            timing.saw_tokens(1)
            piece = Piece(content, reasoning)
    usage = event.get("usage")
    if usage:
        timing.prompt_tokens = usage.get("prompt_tokens") or 0
        timing.output_tokens = usage.get("completion_tokens") or timing.output_tokens
        details = usage.get("prompt_tokens_details") or {}
        timing.cached_tokens = details.get("cached_tokens") or 0
    return piece
