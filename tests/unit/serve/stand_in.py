"""A stand-in for the engine: says what it is told, token by token, and remembers what was asked."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from inlay.core.clock import SystemClock
from inlay.core.errors import (
    AdapterInUseError,
    InlayError,
    ModelFileError,
    ModelNotFoundError,
    OverloadedError,
)
from inlay.core.messages import (
    ChoiceDelta,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    LoadProgress,
    RequestOutput,
    RequestTimes,
    SessionBlocks,
    TokenLogprob,
)
from inlay.models.text import Text
from inlay.serve.config import ServeConfig
from inlay.serve.generation_config import sampling_defaults
from inlay.serve.service import Service

CONTEXT = 1000


class StandInEngine:
    """Answers every request with `says`; ends by `stop` when all of it fits into max_tokens.

    Attributes:
        step_s: pause before each token; None waits for ever before the second one.
        versions: of the weights that compute the first token, and the last.
        fails_after: raise `error` once so many tokens are out.
    """

    def __init__(self, text: Text, says: str = "Hello there.") -> None:
        self.text = text
        self.says = says
        self.step_s: float | None = 0.0
        self.fails_after: int | None = None
        self.error: InlayError = OverloadedError("the queue is full", retry_after_s=2.5)
        self.alive = True
        self.load_progress = LoadProgress(
            loaded_bytes=600, total_bytes=1000, seconds=2.0, over=False
        )
        self.versions = ("", "")
        self.requests: list[GenerateRequest] = []
        self.cancelled: list[str] = []
        self.resets = 0
        self.hints: list[tuple[str, bool]] = []
        self.info = EngineInfo(
            model="some/model",
            architecture="qwen3_moe",
            parameters=1_000_000,
            max_context_tokens=CONTEXT,
            vocab_size=text.vocab_size,
            layers=2,
            moe_layers=2,
            experts=8,
            experts_per_token=2,
            device="cpu",
            weight_format="float32",
            kv_dtype="float32",
            isa="scalar",
            page_tokens=16,
            num_pages=100,
            page_bytes=1024,
            load_s=0.1,
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput]:
        self.requests.append(request)
        params = request.params
        ids = self.text.encode(self.says, add_special_tokens=False)
        limit = params.max_tokens or CONTEXT
        short = len(ids) > limit
        ids = ids[:limit]
        streams = [
            self.text.stream(skip_special_tokens=params.skip_special_tokens)
            for _ in range(params.n)
        ]
        ended = False
        try:
            for position, token in enumerate(ids):
                if self.fails_after == position:
                    raise self.error
                if self.step_s is None and position:
                    await asyncio.Event().wait()
                await asyncio.sleep(self.step_s or 0)
                last = position == len(ids) - 1
                yield RequestOutput(
                    request_id=request.request_id,
                    prompt_tokens=None if position else request.num_tokens,
                    cached_tokens=None if position else 16,
                    prompt_logprobs=None if position else self._prompt_logprobs(request),
                    choices=tuple(
                        ChoiceDelta(
                            index=i,
                            text=stream.push(token) + (stream.flush() if last else ""),
                            token_ids=(token,),
                            logprobs=self._logprobs(request, token),
                            finish_reason=("length" if short else "stop") if last else None,
                        )
                        for i, stream in enumerate(streams)
                    ),
                    finished=last,
                    times=self._times(request) if last else None,
                    weight_version=self.versions[last] if last or not position else None,
                )
            ended = True
        finally:
            if not ended:
                self.cancelled.append(request.request_id)

    async def stats(self) -> EngineStats:
        return EngineStats(
            running=1,
            pages_total=100,
            pages_free=70,
            pages_cached=20,
            weight_version=self.versions[-1],
        )

    async def hint_session(self, session: str, *, paused: bool) -> SessionBlocks:
        self.hints.append((session, paused))
        return SessionBlocks(session, 12 if session == "agent" else 0, 3 if paused else 12)

    async def load_adapter(self, name: str, path: str) -> str:
        if path == "missing":
            raise ModelNotFoundError(f"{path} holds no adapter_config.json")
        if path == "other":
            raise ModelFileError(f"{path}: the adapter is another model's")
        return "00" * 16

    async def unload_adapter(self, name: str) -> None:
        if name == "busy":
            raise AdapterInUseError("adapter 'busy' is used by 1 running requests", "lora_name")

    async def reset_prefix_cache(self) -> None:
        self.resets += 1

    def _logprobs(self, request: GenerateRequest, token: int) -> tuple[TokenLogprob, ...] | None:
        count = request.params.logprobs
        if count is None:
            return None
        top = ((token, -0.5), (1, -1.5), (2, float("-inf")))[:count]
        return (TokenLogprob(token, -0.5, top),)

    def _prompt_logprobs(self, request: GenerateRequest) -> tuple[TokenLogprob | None, ...] | None:
        if request.params.prompt_logprobs is None:
            return None
        entries = (TokenLogprob(i, -2.0, ((7, -1.0),)) for i in request.token_ids[1:])
        return (None, *entries)

    def _times(self, request: GenerateRequest) -> RequestTimes:
        now_s = SystemClock().now()
        return RequestTimes(
            arrival_s=request.arrival_s,
            scheduled_s=request.arrival_s + 0.01,
            first_token_s=now_s,
            finished_s=now_s,
        )


def make_service(
    directory: Path, config: ServeConfig | None = None, says: str = "Hello there."
) -> tuple[Service, StandInEngine]:
    """A service on a stand-in, with the tokenizer and template in `directory`."""
    text = Text.load(directory)
    engine = StandInEngine(text, says)
    config = config or ServeConfig(page=False)
    defaults = sampling_defaults(directory)
    return Service(engine, text, config, defaults=defaults, model_name="tiny"), engine
