"""Synchronous use of an engine: whole prompts in, whole answers out; and the first tiny step."""

import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inlay.core.clock import SystemClock
from inlay.core.errors import EngineError, RequestError
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from inlay.engine.completion import Completion, CompletionChoice

if TYPE_CHECKING:
    from inlay.engine.engine import Engine

log = logging.getLogger(__name__)
_numbers = itertools.count()


def generate(
    engine: "Engine",
    prompts: "str | Sequence[int] | Sequence[str | Sequence[int]]",
    params: SamplingParams | Sequence[SamplingParams] | None,
    *,
    trace: bool,
    adapter: str,
) -> list[Completion]:
    """See `Engine.generate`."""
    clock = SystemClock()
    requests = [
        GenerateRequest(
            request_id=f"generate-{next(_numbers)}",
            prompt=pack_token_ids(token_ids),
            params=one,
            arrival_s=clock.now(),
            trace=trace,
            adapter=adapter,
        )
        for token_ids, one in _pair(_token_ids(engine, prompts), params)
    ]
    answers = {
        request.request_id: Completion(
            request_id=request.request_id,
            choices=[CompletionChoice() for _ in range(request.params.n)],
        )
        for request in requests
    }
    try:
        _run(engine, requests, answers)
    except BaseException:
        for request in requests:
            engine.cancel(request.request_id)
        raise
    return list(answers.values())


def _run(engine: "Engine", requests: list[GenerateRequest], answers: dict[str, Completion]) -> None:
    waiting, unfinished = list(reversed(requests)), len(requests)
    limit = engine.config.scheduler.max_waiting
    while unfinished:
        while waiting and engine.stats().waiting < limit:
            engine.add(waiting.pop())
        if not engine.has_work:
            engine.wait(1.0)
        for output in engine.step():
            answer = answers.get(output.request_id)
            if answer is None:
                continue
            answer.add(output)
            unfinished -= output.finished
            if isinstance(answer.error, RequestError):
                raise answer.error


def _token_ids(
    engine: "Engine", prompts: "str | Sequence[int] | Sequence[str | Sequence[int]]"
) -> list[list[int]]:
    if isinstance(prompts, str):
        return [engine.text.encode(prompts)]
    if prompts and isinstance(prompts[0], int):
        return [[int(token_id) for token_id in prompts]]  # type: ignore[arg-type]
    return [
        engine.text.encode(prompt) if isinstance(prompt, str) else list(prompt)  # type: ignore[arg-type]
        for prompt in prompts
    ]


def _pair(
    prompts: list[list[int]], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[tuple[list[int], SamplingParams]]:
    if params is None or isinstance(params, SamplingParams):
        return [(prompt, params or SamplingParams()) for prompt in prompts]
    if len(params) != len(prompts):
        raise RequestError(f"{len(prompts)} prompts came with {len(params)} params", "params")
    return list(zip(prompts, params, strict=True))


def warm_up(engine: "Engine") -> None:
    """Compute a prompt and two tokens, so that the first request finds all paths ready.

    Raises:
        ModelError: weights that were still to come are damaged.
        EngineError: the model cannot compute; the engine is of no use.
    """
    prompt = [0] * min(engine.cache.page_tokens + 1, max(1, engine.info.max_context_tokens - 2))
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_tokens=2, ignore_eos=True, seed=0)
        answer = engine.generate(prompt, params)[0]
        if engine.failure is not None:
            raise engine.failure
        if answer.error is not None:
            raise EngineError(f"the model failed its first step: {answer.error}")
    engine.reset_prefix_cache()
    engine.forget_totals()
