"""The model as a service: requests in the protocol's words in, typed events out.

`Service` owns names, defaults, limits and the reading of model output. It knows nothing of HTTP:
the routes and the chat page both use it. Closing an iterator it gave cancels the request.
"""

import itertools
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from inlay.cluster.figures import Figures
from inlay.cluster.slo import SloClasses
from inlay.core.clock import Clock, SystemClock
from inlay.core.errors import (
    AdapterNotFoundError,
    ContextLengthError,
    EngineDiedError,
    InlayError,
    NoInstanceError,
    RequestError,
)
from inlay.core.messages import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    LoadProgress,
    RequestOutput,
    SamplingParams,
    SessionBlocks,
)
from inlay.core.near_names import did_you_mean
from inlay.core.token_ids import pack_token_ids
from inlay.models.text import Text
from inlay.serve.config import ServeConfig
from inlay.serve.events import ChatDelta, ChatEnd, ChatEvent, ChatStart, Usage
from inlay.serve.figures_metrics import FiguresCollector
from inlay.serve.metrics import ServerMetrics
from inlay.serve.openai.errors import ModelNameError, ServerStoppingError
from inlay.serve.openai.protocol import ChatRequest, GenerationBody
from inlay.serve.openai.sampling import SamplingDefaults, SamplingLimits, build_params
from inlay.serve.openai.structure import find_structure
from inlay.serve.openai.tools import ToolPlan, plan_tools
from inlay.serve.parsers import OutputParser, PlainParser, ReaderOptions, choose_dialect, joined
from inlay.serve.parsers.forced import CallListParser, NamedCallParser
from inlay.serve.prompts import Prompts


class Engine(Protocol):
    """What the service needs of an engine; `inlay.engine.client.EngineClient` has it."""

    @property
    def info(self) -> EngineInfo:
        """What the engine serves."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the engine still answers."""
        ...

    @property
    def load_progress(self) -> LoadProgress:
        """How much of the weights is in memory."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput]:
        """Run a request; one item per step that touched it."""
        ...

    async def stats(self) -> EngineStats:
        """Gauges and totals now."""
        ...

    async def reset_prefix_cache(self) -> None:
        """Forget cached blocks."""
        ...

    async def hint_session(self, session: str, *, paused: bool) -> SessionBlocks:
        """A session pauses, or its next turn is near."""
        ...

    async def load_adapter(self, name: str, path: str) -> str:
        """Load an adapter; its fingerprint."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter."""
        ...


class ChatJob(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request, checked and ready to run."""

    request: GenerateRequest
    plan: ToolPlan
    options: ReaderOptions
    forced: bool
    name: str


class Service:
    """One engine's model, as its clients see it.

    Args:
        client: the engine.
        text: the model's tokenizer and chat template.
        config: names and limits.
        defaults: sampling defaults of the model.
        model_name: what the user called the model; the served name unless `config` has others.
        classes: of objectives, for requests to choose from.

    Attributes:
        active: requests that run in the engine now.
        adapters: that requests may name as their model: by name the directory, or the fingerprint
            of one that the engine was started with elsewhere.
        figures: what clients had of late; it is told of every request.
        stopping: the engine is being stopped on purpose, so its end is no failure.
    """

    def __init__(
        self,
        client: Engine,
        text: Text,
        config: ServeConfig,
        *,
        defaults: SamplingDefaults | None = None,
        model_name: str | None = None,
        clock: Clock | None = None,
        classes: SloClasses | None = None,
    ) -> None:
        self.client = client
        self.text = text
        self.config = config
        self.defaults = defaults or SamplingDefaults()
        self.names = config.names or (model_name or client.info.model,)
        self.dialect = choose_dialect(text.chat_template, config.tool_parser)
        self.clock = clock or SystemClock()
        self.metrics = ServerMetrics(client.info, self.names[0], self.clock)
        self.classes = classes or SloClasses()
        self.figures = Figures(self.clock, self.classes.of)
        self.metrics.add(FiguresCollector(self.figures))
        self.limits = SamplingLimits(
            vocab_size=client.info.vocab_size,
            max_n=min(config.max_choices, config.engine.scheduler.max_running),
            max_choices=config.max_choices,
            max_logprobs=config.max_logprobs,
        )
        self.prompts = Prompts(text, self.dialect, client.info.max_context_tokens)
        self.adapters = {**client.info.adapters, **config.engine.adapter_paths}
        for name in self.adapters:
            self._check_adapter_name(name)
        self.active = 0
        self.stopping = False
        self._unique = itertools.count()

    @property
    def info(self) -> EngineInfo:
        """What the engine serves and with what."""
        return self.client.info

    @property
    def name(self) -> str:
        """The name reported in answers."""
        return self.names[0]

    @property
    def is_healthy(self) -> bool:
        """Whether requests can be served."""
        return self.client.alive

    def check_model(self, model: str | None) -> str:
        """The name to answer with.

        Raises:
            ModelNameError: a name is given that this server does not serve.
        """
        if not model:
            return self.name
        if model in self.names or model in self.adapters:
            return model
        served = (*self.names, *self.adapters)
        near = did_you_mean(model, served)
        raise ModelNameError(
            f"the model {model!r} does not exist here: this server serves "
            + ", ".join(map(repr, served))
            + (f"; {near}" if near else ""),
            "model",
        )

    def check_adapter(self, name: str, param: str) -> str:
        """The name of an adapter, as requests to the engine have it.

        Raises:
            AdapterNotFoundError: there is none; names `param`.
        """
        if name not in self.adapters:
            near = did_you_mean(name, self.adapters)
            loaded = ", ".join(self.adapters) or "none"
            raise AdapterNotFoundError(
                f"there is no adapter {name!r} here (loaded: {loaded}): {near or 'load it first'}",
                param,
            )
        return name

    async def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter from a directory of the engine's machine; then requests may name it.

        Raises:
            RequestError: the name is in use.
            ModelError: the directory holds no adapter that can be served here.
            EngineError: the engine does not answer.
        """
        self._check_adapter_name(name)
        await self.client.load_adapter(name, path)
        self.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that come meanwhile are refused.

        Raises:
            AdapterNotFoundError: none has the name.
            AdapterInUseError: requests use it.
            EngineError: the engine does not answer.
        """
        await self.client.unload_adapter(name)
        self.adapters.pop(name, None)

    def _check_adapter_name(self, name: str) -> None:
        if name in self.names:
            raise RequestError(
                f"an adapter cannot be named {name!r}, which is the model's name: choose another",
                "lora_name",
            )

    async def chat(self, body: ChatRequest, *, trace: bool = False) -> AsyncGenerator[ChatEvent]:
        """Run a chat request; see `inlay.serve.events` for the order of events.

        Args:
            body: the request, as the HTTP route reads it.
            trace: ask the engine what happened inside; it comes with `ChatEnd`.

        Raises:
            InlayError: the request cannot be served, or the engine failed.
        """
        job = await self.prepare_chat(body, trace=trace)
        async with aclosing(self.run_chat(job)) as events:
            async for event in events:
                yield event

    async def prepare_chat(self, body: ChatRequest, *, trace: bool = False) -> ChatJob:
        """Check a chat request, render its template and count its tokens."""
        name = self.check_model(body.model)
        plan = plan_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
        structure = find_structure(body)
        if plan.structure is not None:
            if structure is not None:
                raise RequestError(
                    "tool_choice forces a tool call, so the answer cannot follow another grammar "
                    "too: leave out response_format and the guided fields",
                    "tool_choice",
                )
            structure = plan.structure
        forced = structure is not None
        prompt, token_ids = await self.prompts.render(body, plan, straight_to_answer=forced)
        if body.max_completion_tokens is not None:
            limit: int | None = body.max_completion_tokens
            param = "max_completion_tokens"
        else:
            limit, param = body.max_tokens, "max_tokens"
        params = build_params(
            body,
            defaults=self.defaults,
            limits=self.limits,
            max_tokens=self.output_limit(len(token_ids), limit, None, param=param),
            logprobs=self._chat_logprobs(body),
            structure=structure,
            skip_special_tokens=(
                False
                if not forced and self.dialect.wants_special_tokens(plan.mode != "none")
                else None
            ),
        )
        options = ReaderOptions(
            thinking=self.dialect.starts_thinking(prompt),
            tools=plan.mode != "none",
            parallel=plan.parallel,
            tool_names=plan.names,
            parameter_types=plan.parameter_types,
        )
        request = self.request("chatcmpl", body, pack_token_ids(token_ids), params, trace=trace)
        return ChatJob(request=request, plan=plan, options=options, forced=forced, name=name)

    async def run_chat(self, job: ChatJob) -> AsyncGenerator[ChatEvent]:
        """Run a prepared chat request."""
        request = job.request
        parsers = [self._parser(job) for _ in range(request.params.n)]
        called = [False] * len(parsers)
        cached = completion = 0
        tier_tokens: dict[str, int] | None = None
        started = False
        async with aclosing(self.generate(request)) as outputs:
            async for output in outputs:
                if not started:
                    started = True
                    cached = output.cached_tokens or 0
                    tier_tokens = output.tier_tokens
                    yield ChatStart(
                        request_id=request.request_id,
                        prompt_tokens=request.num_tokens,
                        cached_tokens=cached,
                        choices=len(parsers),
                        tier_tokens=tier_tokens,
                    )
                for delta in output.choices:
                    completion += len(delta.token_ids)
                    parser = parsers[delta.index]
                    reason: str | None = delta.finish_reason
                    pieces = parser.push(delta.text) if delta.text else []
                    if reason is not None:
                        pieces += parser.finish()
                    if len(pieces) > 1:
                        pieces = joined(pieces)
                    if not called[delta.index]:
                        called[delta.index] = any(piece.tool_call for piece in pieces)
                    if reason == "stop" and called[delta.index]:
                        reason = "tool_calls"
                    count = max(1, len(pieces), len(delta.token_ids))
                    for i in range(count):
                        piece = pieces[i] if i < len(pieces) else None
                        last = i == count - 1
                        # Later events of one step only exist to carry what the first cannot.
                        yield ChatDelta(
                            index=delta.index,
                            content=piece.content if piece else "",
                            reasoning=piece.reasoning if piece else "",
                            tool_call=piece.tool_call if piece else None,
                            token_ids=_share(delta.token_ids, i, count),
                            logprobs=_share(delta.logprobs, i, count),
                            finish_reason=reason if last else None,
                            stop_reason=delta.stop_reason if last else None,
                        )
                if output.finished:
                    yield ChatEnd(
                        usage=Usage(
                            prompt_tokens=output.prompt_tokens or request.num_tokens,
                            completion_tokens=completion,
                            cached_tokens=cached,
                            tier_tokens=tier_tokens,
                        ),
                        times=output.times,
                        trace=output.trace,
                    )

    def _parser(self, job: ChatJob) -> OutputParser:
        if job.plan.mode == "named":
            return NamedCallParser(job.plan.name)
        if job.plan.mode == "required":
            return CallListParser()
        if job.forced:
            return PlainParser()
        return self.dialect.parser(job.options)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput]:
        """Run a request in the engine and count what happens to it.

        Raises:
            ServerStoppingError: the server stopped the engine before the request ended.
            InlayError: the request cannot be served, or the engine failed.
        """
        tracker = self.metrics.track(request.arrival_s)
        watched = self.figures.track(request)
        failure: InlayError | None = None
        self.active += 1
        try:
            async with aclosing(self.client.generate(request)) as outputs:
                async for output in outputs:
                    tracker.saw(output)
                    watched.saw(output)
                    yield output
        except InlayError as error:
            failure = error
            if self.stopping and isinstance(error, EngineDiedError | NoInstanceError):
                raise ServerStoppingError(
                    "the server stopped before the answer was complete"
                ) from None
            raise
        finally:
            self.active -= 1
            tracker.close()
            watched.close(failure)

    def request(
        self,
        prefix: str,
        body: GenerationBody,
        prompt: bytes,
        params: SamplingParams,
        *,
        trace: bool = False,
    ) -> GenerateRequest:
        """A request to the engine, its prompt packed, under an id that no other one has."""
        wanted = body.request_id or f"{prefix}-{secrets.token_hex(12)}"
        unique = wanted if not body.request_id else f"{prefix}-{wanted}-{next(self._unique)}"
        tenant = body.cache_salt or ""
        slo = self.classes.named(body.service_tier)
        return GenerateRequest(
            request_id=unique,
            prompt=prompt,
            params=params,
            arrival_s=self.clock.now(),
            priority=self.classes.priority(slo, body.priority, tenant),
            cache_salt=tenant,
            trace=trace,
            session=body.session_id or "",
            slo=slo.name,
            adapter=body.model if body.model in self.adapters else "",
        )

    def output_limit(
        self, prompt_tokens: int, wanted: int | None, default: int | None, *, param: str
    ) -> int:
        """How many tokens a choice may have.

        Args:
            wanted: what the request says.
            default: the protocol's default for requests that say nothing; shortened to fit.

        Raises:
            ContextLengthError: prompt and wanted output do not fit into the context.
        """
        context = self.info.max_context_tokens
        room = context - prompt_tokens
        if prompt_tokens < 1:
            raise RequestError("the prompt has no tokens: it must have at least one", "prompt")
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {prompt_tokens} tokens, but this model's context is {context} "
                "tokens, prompt and output together: shorten the prompt",
                "messages" if param == "max_completion_tokens" else None,
            )
        cap = self.config.max_completion_tokens
        if wanted is None:
            bounds = (room, default or self.defaults.max_tokens, cap)
            return min(bound for bound in bounds if bound is not None)
        if wanted < 1:
            raise RequestError(f"{param} is {wanted}: it must be at least 1", param)
        if wanted > room:
            raise ContextLengthError(
                f"the prompt has {prompt_tokens} tokens and {param} is {wanted}, but this model's "
                f"context is {context} tokens: ask for at most {room} tokens",
                param,
            )
        return wanted if cap is None else min(wanted, cap)

    def _chat_logprobs(self, body: ChatRequest) -> int | None:
        if not body.logprobs:
            if body.top_logprobs:
                raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
            return None
        return self.limits.check_logprobs("top_logprobs", body.top_logprobs or 0)


def _share(items: tuple[Any, ...] | None, position: int, count: int) -> Any:
    """The part of one step's tokens that its event number `position` of `count` carries."""
    if items is None:
        return None
    if count == 1:
        return items
    if len(items) <= 1:
        return items if position == 0 else ()
    return items[position : position + 1]
