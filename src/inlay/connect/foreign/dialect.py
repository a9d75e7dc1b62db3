"""What differs between engines: how they are asked, and how they answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from inlay.connect.foreign.event_feed import EventSource
from inlay.connect.foreign.gauges import Gauges
from inlay.connect.foreign.http import EngineHttp
from inlay.core.foreign import ForeignEngine
from inlay.core.messages import FinishReason, SamplingParams, TokenLogprob


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an engine says of itself.

    Attributes:
        version: of it.
        model: its name for the model.
        context_tokens: of a prompt and its output.
        adapters: names for which requests may ask.
        cache_tokens: that its KV cache holds; 0: it does not say.
        block_tokens: of a block of it.
        max_running, prefill_chunk: of its scheduler.
        source: of its KV events; None: it publishes none.
    """

    version: str
    model: str
    context_tokens: int
    adapters: Sequence[str] = ()
    cache_tokens: int = 0
    block_tokens: int
    max_running: int
    prefill_chunk: int
    source: EventSource | None = None


@dataclass(frozen=True, kw_only=True)
class ChoiceRequest:
    """One choice of a request, as an engine is asked for it.

    Attributes:
        request_id: for its log.
        model: its name for the model, or for an adapter of it.
        tokens: prompt, and what was produced elsewhere.
        params: of the request; `max_tokens` and `min_tokens` are those of this choice, and `seed`
            its own.
        salt: of the cache.
    """

    request_id: str
    model: str
    tokens: Sequence[int]
    params: SamplingParams
    salt: str = ""


@dataclass(frozen=True, kw_only=True)
class Delta:
    """What an event of a stream added.

    Attributes:
        cached_tokens: of the prompt, where the event says it.
        finish: why it ended; "abort": the engine gave it up.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    cached_tokens: int | None = None


class Reader(Protocol):
    """Reads the events of one choice's stream."""

    def read(self, event: Mapping[str, Any]) -> Delta:
        """What an event added."""
        ...


class Dialect(Protocol):
    """One kind of engine."""

    name: str
    path: str
    """Where choices are asked for."""

    async def facts(self, http: EngineHttp, engine: ForeignEngine) -> Facts:
        """Ask an engine that is ready what it is. Raises InlayError."""
        ...

    def body(self, request: ChoiceRequest) -> dict[str, Any]:
        """What is posted. Raises RequestError: it cannot do that."""
        ...

    def reader(self, request: ChoiceRequest) -> Reader:
        """For the events of an answer."""
        ...

    def gauges(self, metrics: str) -> Gauges:
        """What its `/metrics` say."""
        ...
