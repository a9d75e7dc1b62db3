import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inlay.core.errors import EngineDiedError, OverloadedError, RequestError
from inlay.serve.events import ChatDelta, ChatEnd, ChatStart, Usage
from inlay.serve.generate.prompts import Job, read_jobs
from inlay.serve.generate.runner import Runner
from inlay.serve.openai.protocol import ChatRequest


class FakeService:
    """Answers chats with the message in capitals; later ones faster, so order is not free."""

    def __init__(self) -> None:
        self.running = self.peak = self.calls = 0

    async def chat(self, body: ChatRequest) -> AsyncIterator[Any]:
        text = (body.messages or [])[0]["content"]
        self.calls += 1
        if text == "busy" and self.calls < 3:
            raise OverloadedError("full", retry_after_s=0.001)
        if text == "bad":
            raise RequestError("no good")
        if text == "die":
            raise EngineDiedError("the engine's process ended")
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            yield ChatStart(request_id="r", prompt_tokens=2, cached_tokens=1, choices=1)
            await asyncio.sleep(0.01 / (1 + self.calls))
            yield ChatDelta(index=0, reasoning="hm", token_ids=(5,))
            yield ChatDelta(index=0, content=text.upper(), token_ids=(6,), finish_reason="stop")
            usage = Usage(prompt_tokens=2, completion_tokens=2, cached_tokens=1)
            yield ChatEnd(usage=usage)
        finally:
            self.running -= 1


def jobs(texts: list[str]) -> list[Job]:
    return list(read_jobs(texts, {}, raw=False, has_template=True))


async def run(
    texts: list[str], in_flight: int = 4
) -> tuple[list[dict[str, Any]], FakeService, Runner]:
    service, out = FakeService(), io.StringIO()
    runner = Runner(service, out, in_flight=in_flight)  # type: ignore[arg-type]
    await runner.run(jobs(texts))
    return [json.loads(line) for line in out.getvalue().splitlines()], service, runner


async def test_results_come_in_the_order_of_the_prompts() -> None:
    texts = [f"t{index}" for index in range(20)]
    lines, service, runner = await run(texts, in_flight=3)
    assert [line["text"] for line in lines] == [text.upper() for text in texts]
    assert [line["index"] for line in lines] == list(range(20))
    assert service.peak <= 3
    assert lines[0] == {
        "index": 0,
        "text": "T0",
        "reasoning": "hm",
        "finish_reason": "stop",
        "prompt_tokens": 2,
        "cached_tokens": 1,
        "output_tokens": 2,
    }
    assert (runner.totals.done, runner.totals.output_tokens) == (20, 40)


async def test_a_failing_line_is_recorded() -> None:
    lines, _, runner = await run(["a", "bad", "c"])
    assert lines[1] == {
        "index": 1,
        "error": {"code": "invalid_request", "message": "no good", "line": 2},
    }
    assert [line.get("text") for line in lines] == ["A", None, "C"]
    assert (runner.totals.done, runner.totals.failed) == (2, 1)


async def test_a_full_queue_is_waited_for() -> None:
    lines, service, _ = await run(["busy"])
    assert lines[0]["text"] == "BUSY" and service.calls == 3


async def test_a_dead_engine_ends_the_run() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await run(["a", "die", "c"])
    assert caught.group_contains(EngineDiedError)
