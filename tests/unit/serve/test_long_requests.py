"""Long prompts, many prompts and long chats leave the event loop to the others."""

import asyncio
import threading
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import ContextLengthError
from inlay.serve.openai.completion_job import prepare_completion
from inlay.serve.openai.protocol import ChatRequest, CompletionRequest
from inlay.serve.openai.tools import ToolPlan
from inlay.serve.prompts import Prompts
from tests.unit.serve.stand_in import make_service


async def _turns_of_others(work: Awaitable[Any]) -> tuple[int, float]:
    """How often others had their turn during `work`, and the longest wait in shares of it."""
    task = asyncio.ensure_future(work)
    began_s = last_s = time.monotonic()
    turns, longest_s = 0, 0.0
    while not task.done():
        await asyncio.sleep(0)
        now_s = time.monotonic()
        turns, longest_s, last_s = turns + 1, max(longest_s, now_s - last_s), now_s
    await task
    return turns, longest_s / (last_s - began_s)


async def test_a_long_text_is_tokenised_beside_the_event_loop(tokenizer_directory: Path) -> None:
    service, _ = make_service(tokenizer_directory)
    prompts = Prompts(service.text, service.dialect, context_tokens=10**6)
    text = "abc def ghi " * 30_000
    # A busy machine may keep the event loop waiting once; tokenised on it, it waits always.
    waits = [
        (await _turns_of_others(prompts.tokenise(text, add_special_tokens=False)))[1]
        for _ in range(3)
    ]
    assert min(waits) < 0.6
    token_ids = await prompts.tokenise(text, add_special_tokens=False)
    assert token_ids == service.text.encode(text, add_special_tokens=False)


async def test_a_text_that_cannot_fit_is_not_tokenised(
    tokenizer_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = make_service(tokenizer_directory)
    monkeypatch.setattr(type(service.text), "encode_batch", None)
    monkeypatch.setattr(type(service.text), "encode", None)
    with pytest.raises(ContextLengthError, match="3000000 characters"):
        await service.prompts.tokenise("ab " * 10**6, add_special_tokens=False)


async def test_others_have_their_turn_between_prompts(tokenizer_directory: Path) -> None:
    service, _ = make_service(tokenizer_directory)
    body = CompletionRequest(max_tokens=1)
    turns, _ = await _turns_of_others(prepare_completion(service, body, ["a prompt"] * 100))
    assert turns >= 100


async def test_a_long_chat_is_rendered_beside_the_event_loop(
    tokenizer_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = make_service(tokenizer_directory)
    render = service.text.render_chat
    threads = []

    def noticed(*args: Any, **kwargs: Any) -> str:
        threads.append(threading.current_thread())
        return render(*args, **kwargs)

    one = ChatRequest(messages=[{"role": "user", "content": "a"}])
    await service.prompts.render(one, ToolPlan())  # the first also tries the template out
    monkeypatch.setattr(service.text, "render_chat", noticed)
    for count in (1, 2000):
        messages = [{"role": "user", "content": "a"}] * count
        await service.prompts.render(ChatRequest(messages=messages), ToolPlan())
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()
