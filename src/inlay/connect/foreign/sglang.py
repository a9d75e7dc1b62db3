"""SGLang's server: `/generate` by token ids, its metrics, and where it publishes KV events."""

from collections.abc import Mapping
from typing import Any

from inlay.connect.foreign.dialect import ChoiceRequest, Delta, Facts, Reader
from inlay.connect.foreign.event_feed import EventSource
from inlay.connect.foreign.gauges import Gauges, read_samples, total
from inlay.connect.foreign.http import EngineHttp
from inlay.connect.foreign.sampling import (
    refuse_prompt_logprobs,
    sampling_fields,
    structure_fields,
)
from inlay.core.errors import (
    ConfigError,
    EndpointError,
    EngineDiedError,
    EngineError,
)
from inlay.core.foreign import ForeignEngine
from inlay.core.messages import FinishReason, TokenLogprob

_ASK_S = 10.0
_MAX_RUNNING, _PREFILL_CHUNK = 256, 8192  # where it does not say
_RUNNING, _WAITING = "sglang:num_running_reqs", "sglang:num_queue_reqs"
_USAGE, _CACHE = "sglang:token_usage", "sglang:max_total_num_tokens"
_STARTED = "process_start_time_seconds"
_NAMES = frozenset({_RUNNING, _WAITING, _USAGE, _CACHE, _STARTED})
_FINISHES: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class Sglang:
    """See `dialect.Dialect`."""

    name = "sglang"
    path = "/generate"

    async def facts(self, http: EngineHttp, engine: ForeignEngine) -> Facts:
        """What it serves, and what its cache holds."""
        info = await http.json("/server_info", _ASK_S)
        model = str(info.get("served_model_name") or info.get("model_path") or "")
        if engine.served_model not in (None, model):
            raise ConfigError(f"{http.url} serves {model}, and not {engine.served_model!r}")
        models = (await http.json("/v1/models", _ASK_S))["data"]
        return Facts(
            version=str(info.get("version", "")),
            model=model,
            context_tokens=int(models[0]["max_model_len"]),
            cache_tokens=int(info.get("max_total_num_tokens") or 0),
            block_tokens=_positive(info.get("page_size"), 1),
            max_running=engine.max_running or info.get("max_running_requests") or _MAX_RUNNING,
            prefill_chunk=_positive(
                engine.prefill_chunk or info.get("chunked_prefill_size"), _PREFILL_CHUNK
            ),
            source=self._source(info, engine),
        )

    def _source(self, info: Mapping[str, Any], engine: ForeignEngine) -> EventSource | None:
        if engine.kv_events == "none":
            return None
        replay = None if engine.kv_replay == "none" else engine.kv_replay
        if engine.kv_events is not None:
            return EventSource(events=engine.kv_events, replay=replay)
        found = info.get("kv_events")
        if not found:
            return None
        if int(found.get("dp_size") or 1) > 1:
            raise ConfigError(
                f"{engine.url} has {found['dp_size']} data-parallel ranks, each with a cache of "
                "its own, and nobody could say which one gets a request: start each as a server"
            )
        host = str(found.get("endpoint_host") or "*")
        if host in ("*", "0.0.0.0", "::", "[::]"):
            host = engine.host
        port = found.get("replay_endpoint_port_base")
        if port and replay is None and engine.kv_replay != "none":
            replay = f"tcp://{engine.host}:{port}"
        return EventSource(events=f"tcp://{host}:{found['endpoint_port_base']}", replay=replay)

    def body(self, request: ChoiceRequest) -> dict[str, Any]:
        """Of `/generate`."""
        params = request.params
        refuse_prompt_logprobs(params)
        body: dict[str, Any] = {
            "rid": request.request_id,
            "input_ids": list(request.tokens),
            "sampling_params": sampling_fields(self.name, params)
            | structure_fields(self.name, params.structure),
            "stream": True,
        }
        if params.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": params.logprobs}
        if request.salt:
            body["cache_salt"] = request.salt
        return body

    def reader(self, request: ChoiceRequest) -> Reader:
        """For its events."""
        return _Answers(request.params.logprobs)

    def gauges(self, metrics: str) -> Gauges:
        """What its `/metrics` say."""
        samples = read_samples(metrics, _NAMES)
        usages = [value for _, value in samples[_USAGE]]
        return Gauges(
            running=int(total(samples, _RUNNING)),
            waiting=int(total(samples, _WAITING)),
            usage=max(usages, default=0.0),
            cache_tokens=int(total(samples, _CACHE)),
            started_s=total(samples, _STARTED),
        )


class _Answers:
    """Events of `/generate`. Each says all of the answer so far, or what is new of it."""

    def __init__(self, logprobs: int | None) -> None:
        self._num_logprobs = logprobs
        self._characters = self._tokens = self._logprobs = 0

    def read(self, event: Mapping[str, Any]) -> Delta:
        """What an event added."""
        meta, ids, text = event["meta_info"], event.get("output_ids"), event.get("text") or ""
        if ids is None:
            raise EngineError("the engine's answer has no token ids: it is too old (SGLang 0.4.7)")
        if len(ids) >= meta["completion_tokens"] and self._tokens:  # all of it again
            ids = ids[self._tokens :]
            text = text[self._characters :]
        self._tokens += len(ids)
        self._characters += len(text)
        finish = meta.get("finish_reason")
        kind = None if finish is None else finish.get("type")
        if kind is not None and kind not in _FINISHES:
            raise EngineDiedError(f"the engine gave the request up ({finish})")
        return Delta(
            text=text,
            token_ids=tuple(ids),
            logprobs=self._read_logprobs(meta),
            finish=None if kind is None else _FINISHES[kind],
            stop_reason=None if finish is None else finish.get("matched"),
            cached_tokens=meta.get("cached_tokens"),
        )

    def _read_logprobs(self, meta: Mapping[str, Any]) -> tuple[TokenLogprob, ...] | None:
        if self._num_logprobs is None:
            return None
        chosen = meta.get("output_token_logprobs") or []
        tops = meta.get("output_top_logprobs") or []
        if len(chosen) >= self._tokens:  # all of them again
            chosen, tops = chosen[self._logprobs :], tops[self._logprobs :]
        self._logprobs += len(chosen)
        found = []
        for index, (logprob, token, *_) in enumerate(chosen):
            top = (tops[index] if index < len(tops) else None) or []
            found.append(TokenLogprob(token, logprob, tuple((one[1], one[0]) for one in top)))
        return tuple(found)


def _positive(value: Any, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default


async def is_sglang(http: EngineHttp) -> bool:
    """Whether a server is SGLang's."""
    try:
        info = await http.json("/server_info", _ASK_S)
    except EndpointError:
        return False
    return isinstance(info, dict) and "model_path" in info
