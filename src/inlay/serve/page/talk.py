"""The one place where the page speaks to the server's `Service`: questions, events, figures."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from inlay.core.messages import EngineInfo, EngineStats
from inlay.serve.events import ChatDelta, ChatEnd, ChatStart
from inlay.serve.openai.protocol import ChatRequest
from inlay.serve.page.conversation import Answer, Sampling
from inlay.serve.service import Service


@dataclass(frozen=True, kw_only=True)
class Model:
    """What the page says about the model."""

    name: str
    is_demo: bool
    info: EngineInfo


def model_of(service: Service) -> Model:
    """Describe the model that `service` serves."""
    is_demo = service.config.engine.model is None
    return Model(name=service.name, is_demo=is_demo, info=service.info)


def sampling_of(service: Service) -> Sampling:
    """Settings to start with: the model's own; the demo model answers best when greedy."""
    defaults = service.defaults
    return Sampling(
        temperature=0.0 if model_of(service).is_demo else defaults.temperature,
        top_p=defaults.top_p,
    )


async def stats_of(service: Service) -> EngineStats | None:
    """The engine's figures of this moment; None when it does not answer."""
    return await service.client.stats() if service.client.alive else None


async def answer(
    service: Service, messages: list[dict[str, str]], sampling: Sampling, into: Answer
) -> AsyncGenerator[None]:
    """Ask `into.model` and write what comes back into `into`; yields after each change.

    Closing the iterator cancels the request in the engine.

    Raises:
        InlayError: as the server's own routes would report it.
    """
    body = ChatRequest(
        model=into.model or None,
        messages=list(messages),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
    )
    asked_s = time.monotonic()
    async with aclosing(service.chat(body, trace=True)) as events:
        async for event in events:
            match event:
                case ChatStart():
                    into.ttft_s = time.monotonic() - asked_s
                    into.prompt_tokens = event.prompt_tokens
                    into.cached_tokens = event.cached_tokens
                case ChatDelta():
                    into.text += event.content
                    into.reasoning += event.reasoning
                    into.completion_tokens += len(event.token_ids)
                    into.finish_reason = event.finish_reason or into.finish_reason
                    into.writing_s = time.monotonic() - asked_s - (into.ttft_s or 0.0)
                case ChatEnd():
                    into.prompt_tokens = event.usage.prompt_tokens
                    into.cached_tokens = event.usage.cached_tokens
                    into.completion_tokens = event.usage.completion_tokens
                    into.times, into.trace = event.times, event.trace
            yield
