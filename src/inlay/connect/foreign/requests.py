"""Requests of dispatchers at a foreign engine: one stream of it for each choice."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec

from inlay.connect.foreign.about import About
from inlay.connect.foreign.dialect import ChoiceRequest, Dialect
from inlay.connect.foreign.http import EngineHttp
from inlay.connect.foreign.names import BlockNames
from inlay.connect.foreign.timing import Choice, StepTimes
from inlay.core.block_hash import chain
from inlay.core.clock import Clock
from inlay.core.errors import (
    AdapterNotFoundError,
    ContextLengthError,
    EngineDiedError,
    EngineError,
    InlayError,
    RequestError,
)
from inlay.core.failures import failure_output
from inlay.core.messages import (
    ChoiceDelta,
    GenerateRequest,
    RequestOutput,
    RequestTimes,
)

log = logging.getLogger(__name__)

_SEEDS = 1 << 63


class Requests:
    """All that are open at one engine. Called on the event loop.

    Args:
        changed: called when there is something to take.
        died: asked whether an engine that failed a request is there; does not return if not.

    Attributes:
        times: of the engine's steps.
        prompt_tokens, cached_tokens, generated_tokens: so far.
    """

    def __init__(
        self,
        dialect: Dialect,
        http: EngineHttp,
        about: About,
        names: BlockNames,
        clock: Clock,
        *,
        changed: Callable[[], None],
        died: Callable[[EngineError], Awaitable[None]],
    ) -> None:
        self.times = StepTimes(about.facts.prefill_chunk)
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self._dialect = dialect
        self._http = http
        self._about = about
        self._names = names
        self._clock = clock
        self._changed = changed
        self._died = died
        self._live: dict[str, asyncio.Task[None]] = {}
        self._outputs: list[RequestOutput] = []

    def add(self, message: GenerateRequest) -> None:
        """Ask the engine for a request.

        Raises:
            RequestError: it cannot be computed as written.
        """
        if message.request_id in self._live:
            raise RequestError(f"request id {message.request_id!r} is in use", "request_id")
        if message.phase != "both":
            raise RequestError(
                f"phase is {message.phase!r}: this engine exchanges no KV with others, so prompt "
                "and output have to be computed by it"
            )
        live = _Live(self, message)  # refuses
        task = asyncio.ensure_future(live.run())
        self._live[message.request_id] = task
        task.add_done_callback(lambda _: self._ended(message.request_id, task))

    def _ended(self, request_id: str, task: "asyncio.Task[None]") -> None:
        del self._live[request_id]
        if task.cancelled():  # it has had no last output
            self.put(RequestOutput(request_id=request_id, finished=True))

    def cancel(self, request_id: str) -> None:
        """End a request; an unknown one is ignored."""
        task = self._live.get(request_id)
        if task is not None:
            task.cancel()

    def take(self) -> list[RequestOutput]:
        """Outputs since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    async def close(self) -> None:
        """End all."""
        tasks = list(self._live.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def put(self, output: RequestOutput) -> None:
        """There is something to say."""
        self._outputs.append(output)
        self._changed()


class _Live:
    """One request."""

    def __init__(self, owner: Requests, message: GenerateRequest) -> None:
        self._owner = owner
        self._message = message
        self._id = message.request_id
        about = owner._about
        prompt, limit = message.token_ids, about.facts.context_tokens
        wanted = message.params.max_tokens
        if not prompt:
            raise RequestError("the prompt is empty: it needs at least one token", "prompt")
        if len(prompt) + (1 if wanted is None else wanted) > limit:
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens and max_tokens is {wanted}, but the context "
                f"holds {limit}: shorten the prompt or the output",
                "prompt",
            )
        if message.adapter and message.adapter not in about.engine.adapters:
            raise AdapterNotFoundError(
                f"the engine has no adapter {message.adapter!r} (it has: "
                f"{', '.join(about.engine.adapters) or 'none'})",
                "model",
            )
        self._limit = limit - len(prompt) if wanted is None else wanted
        self._model = message.adapter or about.facts.model
        produced = message.produced or ((),) * message.params.n
        self._choices = [
            (index, self._choice(index, prompt, list(tokens)))
            for index, tokens in enumerate(produced)
            if tokens is not None
        ]
        self._bodies = [owner._dialect.body(choice) for _, choice in self._choices]  # refuses
        self._cached = self._expected(prompt)
        self._first_s = 0.0
        self._said = False
        self._open = len(self._choices)

    async def run(self) -> None:
        """Ask for all choices, and pass on what comes."""
        owner = self._owner
        owner.prompt_tokens += self._message.num_tokens
        owner.cached_tokens += self._cached
        try:
            async with asyncio.TaskGroup() as group:
                for (index, choice), body in zip(self._choices, self._bodies, strict=True):
                    group.create_task(self._run_choice(index, choice, body))
        except BaseExceptionGroup as errors:
            await self._fail(errors.exceptions[0])

    async def _fail(self, error: BaseException) -> None:
        if isinstance(error, EngineError):
            await self._owner._died(error)
        elif not isinstance(error, InlayError):
            log.error("a request of the engine failed", exc_info=error)
            error = EngineError(f"what the engine answered cannot be read: {error!r}")
        self._owner.put(failure_output(self._id, error))

    async def _run_choice(self, index: int, choice: ChoiceRequest, body: dict[str, object]) -> None:
        owner = self._owner
        reader = owner._dialect.reader(choice)
        # The last token is computed whatever the cache has.
        start = min(self._cached, len(choice.tokens) - 1)
        timing = owner.times.asked(start, len(choice.tokens), owner._clock.now())
        try:
            async with owner._http.stream(owner._dialect.path, body, choice.request_id) as events:
                ended = False
                async with aclosing(events):
                    async for event in events:
                        delta = reader.read(event)
                        if delta.token_ids:
                            owner.times.came(timing, len(delta.token_ids), owner._clock.now())
                            owner.generated_tokens += len(delta.token_ids)
                        if ended or not (delta.token_ids or delta.text or delta.finish):
                            continue
                        ended = delta.finish is not None
                        self._put(
                            timing,
                            ChoiceDelta(
                                index=index,
                                text=delta.text,
                                token_ids=delta.token_ids,
                                logprobs=delta.logprobs,
                                finish_reason=delta.finish,
                                stop_reason=delta.stop_reason,
                            ),
                        )
                if not ended:
                    raise EngineDiedError("the engine ended its answer in the middle")
        finally:
            owner.times.ended(timing)

    def _put(self, timing: Choice, delta: ChoiceDelta) -> None:
        now_s = self._owner._clock.now()
        first = not self._said
        if first:
            self._said, self._first_s = True, now_s
        self._open -= delta.finish_reason is not None
        finished = self._open == 0
        self._owner.put(
            RequestOutput(
                request_id=self._id,
                choices=(delta,),
                prompt_tokens=self._message.num_tokens if first else None,
                cached_tokens=self._cached if first else None,
                finished=finished,
                times=self._times(timing, now_s) if finished else None,
            )
        )

    def _times(self, timing: Choice, now_s: float) -> RequestTimes:
        return RequestTimes(
            arrival_s=self._message.arrival_s,
            scheduled_s=min(timing.asked_s, self._first_s),
            first_token_s=self._first_s,
            finished_s=now_s,
        )

    def _choice(self, index: int, prompt: list[int], produced: list[int]) -> ChoiceRequest:
        """One choice, from where another instance has left it."""
        params = self._message.params
        done = len(produced)
        own = msgspec.structs.replace(
            params,
            n=1,
            max_tokens=self._limit - done,
            min_tokens=max(0, params.min_tokens - done),
            seed=None if params.seed is None else (params.seed + index) % _SEEDS,
        )
        return ChoiceRequest(
            request_id=f"{self._id}-{index}".replace(":", "-"),
            model=self._model,
            tokens=prompt + produced,
            params=own,
            salt=self._message.cache_salt,
        )

    def _expected(self, prompt: list[int]) -> int:
        """Prompt tokens that the engine has, by its events."""
        owner, message = self._owner, self._message
        key = owner._about.key_of(message.cache_salt, message.adapter)
        if key is None:
            return 0
        page_tokens = owner._about.engine.page_tokens
        blocks = owner._names.match(chain(key, prompt, page_tokens))
        return min(blocks * page_tokens, len(prompt) - 1)
