"""Runs jobs through a service: as many at once as the engine takes, results in input order."""

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TextIO

from inlay.core.errors import EngineError, InlayError, OverloadedError
from inlay.core.token_ids import TOKEN_BYTES
from inlay.serve.events import ChatDelta, ChatEnd
from inlay.serve.generate.prompts import Job
from inlay.serve.openai.completion_job import pack_prompt, read_prompts
from inlay.serve.openai.protocol import ChatRequest, CompletionRequest
from inlay.serve.openai.sampling import build_params
from inlay.serve.openai.structure import find_structure
from inlay.serve.service import Service


@dataclass
class Totals:
    """What a run came to."""

    done: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Runner:
    """Keeps up to `in_flight` requests in the engine.

    Results wait until those before them are written, so at most `in_flight` are held in memory.
    """

    def __init__(
        self,
        service: Service,
        out: TextIO,
        *,
        in_flight: int,
        on_done: Callable[[Totals], None] = lambda totals: None,
    ) -> None:
        self._service = service
        self._out = out
        self._room = asyncio.Semaphore(in_flight)
        self._on_done = on_done
        self.totals = Totals()

    async def run(self, jobs: Iterable[Job]) -> Totals:
        """Run all jobs; a failing one is recorded in its line.

        Raises:
            EngineError: the engine failed as a whole; lines written so far stay.
        """
        waiting: asyncio.Queue[asyncio.Task[dict[str, Any]] | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_in_order(waiting))
            for job in jobs:
                await self._room.acquire()  # given back when the job's line is written
                waiting.put_nowait(tasks.create_task(self._result(job)))
            waiting.put_nowait(None)
        return self.totals

    async def _write_in_order(
        self, waiting: "asyncio.Queue[asyncio.Task[dict[str, Any]] | None]"
    ) -> None:
        while (task := await waiting.get()) is not None:
            result = await task
            self._out.write(json.dumps(result, ensure_ascii=False) + "\n")
            self._out.flush()
            self._room.release()
            self._on_done(self.totals)

    async def _result(self, job: Job) -> dict[str, Any]:
        """The output line of a job."""
        line: dict[str, Any] = {"index": job.index}
        if job.tag is not None:
            line["id"] = job.tag
        try:
            if job.error is not None or job.request is None:
                raise job.error or InlayError("no request")
            line |= await self._generate(job.request)
            self.totals.done += 1
        except EngineError:
            raise
        except InlayError as error:
            self.totals.failed += 1
            line["error"] = {"code": error.code, "message": str(error), "line": job.line}
        return line

    async def _generate(self, request: ChatRequest | CompletionRequest) -> dict[str, Any]:
        """Run a request; again after a pause while the engine's queue is full."""
        while True:
            try:
                if isinstance(request, ChatRequest):
                    return await self._chat(request)
                return await self._complete(request)
            except OverloadedError as error:
                await asyncio.sleep(error.retry_after_s)

    async def _chat(self, request: ChatRequest) -> dict[str, Any]:
        text = reasoning = ""
        result: dict[str, Any] = {}
        calls: list[dict[str, str]] = []
        async with aclosing(self._service.chat(request)) as events:
            async for event in events:
                if isinstance(event, ChatDelta):
                    text += event.content
                    reasoning += event.reasoning
                    result["finish_reason"] = event.finish_reason or result.get("finish_reason")
                    if (call := event.tool_call) is not None:
                        if call.name is not None:
                            calls.append({"name": call.name, "arguments": ""})
                        calls[-1]["arguments"] += call.arguments
                elif isinstance(event, ChatEnd):
                    usage = event.usage
                    self._count(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
                    result |= _counts(
                        usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
                    )
        extra: dict[str, Any] = {"reasoning": reasoning} if reasoning else {}
        return {"text": text, **extra, **({"tool_calls": calls} if calls else {}), **result}

    async def _complete(self, body: CompletionRequest) -> dict[str, Any]:
        service = self._service
        (given,) = read_prompts(body.prompt, service.limits.vocab_size)
        packed = await pack_prompt(service, given, body)
        prompt = len(packed) // TOKEN_BYTES
        params = build_params(
            body,
            defaults=service.defaults,
            limits=service.limits,
            max_tokens=service.output_limit(prompt, body.max_tokens, None, param="max_tokens"),
            structure=find_structure(body),
        )
        text, reason, cached, count = "", None, 0, 0
        outputs = service.generate(service.request("cmpl", body, packed, params))
        async with aclosing(outputs) as stream:
            async for output in stream:
                prompt = output.prompt_tokens or prompt
                cached = output.cached_tokens or cached
                for delta in output.choices:
                    text += delta.text
                    count += len(delta.token_ids)
                    reason = delta.finish_reason or reason
        self._count(prompt, cached, count)
        return {"text": text, "finish_reason": reason, **_counts(prompt, cached, count)}

    def _count(self, prompt: int, cached: int, output: int) -> None:
        self.totals.prompt_tokens += prompt
        self.totals.cached_tokens += cached
        self.totals.output_tokens += output


def _counts(prompt: int, cached: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "cached_tokens": cached, "output_tokens": output}
