"""vLLM's server: completions by token ids, its metrics, and where it publishes KV events."""

from collections.abc import Mapping
from typing import Any

from inlay.connect.foreign.dialect import ChoiceRequest, Delta, Facts, Reader
from inlay.connect.foreign.event_feed import EventSource
from inlay.connect.foreign.gauges import Gauges, Samples, read_samples, total
from inlay.connect.foreign.http import EngineHttp
from inlay.connect.foreign.sampling import (
    refuse_prompt_logprobs,
    sampling_fields,
    structure_fields,
)
from inlay.core.errors import ConfigError, EndpointError, EngineDiedError, EngineError
from inlay.core.foreign import ForeignEngine
from inlay.core.messages import FinishReason, TokenLogprob

_ASK_S = 10.0
_MAX_RUNNING, _PREFILL_CHUNK = 256, 2048  # its defaults; HTTP does not tell them
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_USAGE, _CACHE = "vllm:kv_cache_usage_perc", "vllm:cache_config_info"
_OLD_USAGE = "vllm:gpu_cache_usage_perc"
_STARTED = "process_start_time_seconds"
_NAMES = frozenset({_RUNNING, _WAITING, _USAGE, _OLD_USAGE, _CACHE, _STARTED})
_BLOCK_TOKENS = 16  # where it does not say
_TOKEN = "token_id:"
_FINISHES: dict[str, FinishReason] = {"stop": "stop", "length": "length", "repetition": "stop"}


class Vllm:
    """See `dialect.Dialect`."""

    name = "vllm"
    path = "/v1/completions"

    async def facts(self, http: EngineHttp, engine: ForeignEngine) -> Facts:
        """What it serves, and what its cache holds."""
        models = (await http.json("/v1/models", _ASK_S))["data"]
        base = [one for one in models if not one.get("parent")]
        wanted = engine.served_model
        model = next((m for m in base if wanted in (None, m["id"])), None)
        if model is None:
            known = ", ".join(one["id"] for one in base)
            raise ConfigError(f"{http.url} serves {known or 'nothing'}, and not {wanted!r}")
        samples = read_samples(await http.text("/metrics", _ASK_S), _NAMES)
        return Facts(
            version=str((await http.json("/version", _ASK_S)).get("version", "")),
            model=model["id"],
            context_tokens=int(model["max_model_len"]),
            adapters=[one["id"] for one in models if one.get("parent") == model["id"]],
            cache_tokens=_cache_tokens(samples),
            block_tokens=_block_tokens(samples),
            max_running=engine.max_running or _MAX_RUNNING,
            prefill_chunk=engine.prefill_chunk or _PREFILL_CHUNK,
            source=await self._source(http, engine),
        )

    async def _source(self, http: EngineHttp, engine: ForeignEngine) -> EventSource | None:
        if engine.kv_events == "none":
            return None
        if engine.kv_events is not None:
            replay = None if engine.kv_replay == "none" else engine.kv_replay
            return EventSource(events=engine.kv_events, replay=replay)
        try:
            sources = await http.json("/kv_event_sources", _ASK_S)
        except EndpointError:  # before 0.32
            return None
        if len(sources) > 1:
            raise ConfigError(
                f"{http.url} has {len(sources)} data-parallel ranks, each with a cache of its own, "
                "and nobody could say which one gets a request: start each rank as a server"
            )
        if not sources:
            return None
        found = next(iter(sources.values()))
        replay = found.get("replay_endpoint")
        return EventSource(
            events=_seen_from_here(found["endpoint"], engine.host),
            replay=None if replay is None else replay.replace("*", engine.host),
        )

    def body(self, request: ChoiceRequest) -> dict[str, Any]:
        """Of `/v1/completions`."""
        params = request.params
        refuse_prompt_logprobs(params)
        body: dict[str, Any] = {
            "model": request.model,
            "prompt": list(request.tokens),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "request_id": request.request_id,
            **sampling_fields(self.name, params),
        }
        if params.logprobs is not None:
            body |= {"logprobs": params.logprobs, "return_tokens_as_token_ids": True}
        if structure := structure_fields(self.name, params.structure):
            body["structured_outputs"] = structure
        if request.salt:
            body["cache_salt"] = request.salt
        return body

    def reader(self, request: ChoiceRequest) -> Reader:
        """For its chunks."""
        return _Chunks(request.params.logprobs)

    def gauges(self, metrics: str) -> Gauges:
        """What its `/metrics` say, all its engines together."""
        samples = read_samples(metrics, _NAMES)
        usages = [value for name in (_USAGE, _OLD_USAGE) for _, value in samples[name]]
        return Gauges(
            running=int(total(samples, _RUNNING)),
            waiting=int(total(samples, _WAITING)),
            usage=sum(usages) / len(usages) if usages else 0.0,
            cache_tokens=_cache_tokens(samples),
            started_s=total(samples, _STARTED),
        )


class _Chunks:
    """Chunks of `/v1/completions`; each has new text and new tokens."""

    def __init__(self, logprobs: int | None) -> None:
        self._logprobs = logprobs

    def read(self, event: Mapping[str, Any]) -> Delta:
        """What a chunk added."""
        cached = ((event.get("usage") or {}).get("prompt_tokens_details") or {}).get(
            "cached_tokens"
        )
        if not event.get("choices"):
            return Delta(cached_tokens=cached)
        choice = event["choices"][0]
        token_ids = choice.get("token_ids")
        if token_ids is None:
            raise EngineError("the engine's answer has no token ids: it is too old (vLLM 0.11)")
        finish = choice.get("finish_reason")
        if finish is not None and finish not in _FINISHES:
            raise EngineDiedError(f"the engine gave the request up ({finish})")
        return Delta(
            text=choice.get("text") or "",
            token_ids=tuple(token_ids),
            logprobs=self._read_logprobs(choice.get("logprobs")),
            finish=None if finish is None else _FINISHES[finish],
            stop_reason=choice.get("stop_reason"),
            cached_tokens=cached,
        )

    def _read_logprobs(self, found: Mapping[str, Any] | None) -> tuple[TokenLogprob, ...] | None:
        if self._logprobs is None or found is None:
            return None
        tops = found.get("top_logprobs") or [None] * len(found["tokens"])
        return tuple(
            TokenLogprob(_token(token), logprob, self._read_top(top))
            for token, logprob, top in zip(
                found["tokens"], found["token_logprobs"], tops, strict=True
            )
        )

    def _read_top(self, top: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
        ranked = sorted((top or {}).items(), key=lambda entry: -entry[1])[: self._logprobs]
        return tuple((_token(token), logprob) for token, logprob in ranked)


def _token(text: str) -> int:
    return int(text.removeprefix(_TOKEN))


def _cache_tokens(samples: Samples) -> int:
    found = 0
    for labels, _ in samples[_CACHE]:
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if blocks.isdigit() and size.isdigit():
            found += int(blocks) * int(size)
    return found


def _block_tokens(samples: Samples) -> int:
    sizes = [labels.get("block_size", "") for labels, _ in samples[_CACHE]]
    return next((int(size) for size in sizes if size.isdigit()), _BLOCK_TOKENS)


def _seen_from_here(endpoint: str, host: str) -> str:
    """Where to subscribe to what an engine publishes at an endpoint.

    It binds one with a `*`, so that others connect; to any other it connects itself, and whoever
    subscribes binds it.
    """
    if "*" in endpoint:
        return endpoint.replace("*", f"[{host}]" if ":" in host else host)
    if endpoint.startswith("tcp://"):
        return f"tcp://*:{endpoint.rpartition(':')[2]}"
    return endpoint
