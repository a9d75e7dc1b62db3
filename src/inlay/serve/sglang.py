"""The part of SGLang's own protocol that its benchmarks and tools speak: `/generate` and info.

Answers carry the whole text so far in every event, as SGLang's do.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from inlay import __version__
from inlay.core.errors import RequestError
from inlay.core.messages import ChoiceDelta, GenerateRequest, RequestOutput, TokenLogprob
from inlay.core.token_ids import pack_token_ids
from inlay.serve.openai.errors import json_response
from inlay.serve.openai.http import read_body
from inlay.serve.openai.protocol import GenerationBody, decode_body
from inlay.serve.openai.sampling import build_params
from inlay.serve.openai.sse import CLIENT_CLOSED, EventStream, event, merged, while_connected
from inlay.serve.openai.structure import find_structure
from inlay.serve.service import Service

_DEFAULT_MAX_TOKENS = 128
_FIRST_WEIGHTS = "default"  # SGLang's name of those that were loaded first


class SglangSampling(GenerationBody, kw_only=True):
    """`sampling_params` of a `/generate` body."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    sampling_seed: int | None = None
    json_schema: str | None = None
    regex: str | None = None


class SglangRequest(msgspec.Struct, kw_only=True):
    """The body of `/generate`.

    Attributes:
        lora_path: name of an adapter, of each prompt where it is a list; empty or null: none.
    """

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SglangSampling | None = None
    stream: bool | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    logprob_start_len: int | None = None
    return_text_in_logprobs: bool | None = None
    lora_path: str | list[str | None] | None = None


_decoder = msgspec.json.Decoder(SglangRequest)


class SglangRoutes:
    """`/generate`, `/server_info` and `/model_info` with their older names."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started_s = time.time()

    async def generate(self, request: Request) -> Response:
        """Texts or tokens in; the text so far out, in events or once."""
        service = self._service
        body = decode_body(await read_body(request, service.config.max_body_bytes), _decoder)
        requests, is_batch = await _requests(service, body)
        if body.stream:
            stream = EventStream(_stream(service, requests, body, is_batch))
            return await while_connected(request.receive, stream.start()) or Response(
                status_code=CLIENT_CLOSED
            )
        answers = await while_connected(request.receive, _whole(service, requests, body))
        if answers is None:
            return Response(status_code=CLIENT_CLOSED)
        return json_response(answers if is_batch or len(answers) > 1 else answers[0])

    async def server_info(self, request: Request) -> Response:
        """What the benchmarks look for, and the rest of the engine's description."""
        service, info = self._service, self._service.info
        state = {
            "last_gen_throughput": 0.0,
            "memory_usage": {"token_capacity": info.num_pages * info.page_tokens},
            "effective_max_running_requests_per_dp": service.config.engine.scheduler.max_running,
        }
        return json_response(
            {
                "version": __version__,
                "status": "ready",
                "model_path": info.model,
                "tokenizer_path": info.model,
                "served_model_name": service.name,
                "max_total_num_tokens": info.num_pages * info.page_tokens,
                "context_length": info.max_context_tokens,
                "engine": msgspec.structs.asdict(info),
                "internal_states": [state],
            }
        )

    async def model_info(self, request: Request) -> Response:
        """Model and tokenizer."""
        service = self._service
        stats = await service.client.stats()
        return json_response(
            {
                "model_path": service.info.model,
                "tokenizer_path": service.info.model,
                "served_model_name": service.name,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": stats.weight_version or _FIRST_WEIGHTS,
            }
        )


async def _requests(service: Service, body: SglangRequest) -> tuple[list[GenerateRequest], bool]:
    sampling = body.sampling_params or SglangSampling()
    is_batch = isinstance(body.text, list) or _is_list_of_lists(body.input_ids)
    prompts = _prompts(body)
    if sampling.max_tokens is None:
        sampling.max_tokens = sampling.max_new_tokens
    wanted = sampling.max_tokens
    if wanted is not None and wanted < 0:
        raise RequestError(f"max_new_tokens is {wanted}: it must be at least 0", "max_new_tokens")
    if sampling.min_tokens is None:
        sampling.min_tokens = sampling.min_new_tokens
    if sampling.seed is None:
        sampling.seed = sampling.sampling_seed
    if sampling.guided_json is None:
        sampling.guided_json = sampling.json_schema
    if sampling.guided_regex is None:
        sampling.guided_regex = sampling.regex
    logprobs = None
    if body.return_logprob:
        logprobs = service.limits.check_logprobs("top_logprobs_num", body.top_logprobs_num or 0)
    whole_prompt = body.logprob_start_len is not None and body.logprob_start_len >= 0
    structure = find_structure(sampling)
    adapters = _adapters(service, body.lora_path, len(prompts))
    made = []
    for prompt, adapter in zip(prompts, adapters, strict=True):
        if isinstance(prompt, str):
            ids = await service.prompts.tokenise(prompt, add_special_tokens=True)
        else:
            ids = prompt
        bad = next((i for i in ids if not 0 <= i < service.limits.vocab_size), None)
        if bad is not None:
            raise RequestError(f"input_ids has {bad}: no such token", "input_ids")
        # SGLang shortens the output to what fits instead of refusing the request.
        room = service.info.max_context_tokens - len(ids)
        params = build_params(
            sampling,
            defaults=service.defaults,
            limits=service.limits,
            max_tokens=service.output_limit(
                len(ids),
                None if wanted is None else max(1, min(wanted, room)),
                _DEFAULT_MAX_TOKENS,
                param="max_new_tokens",
            ),
            logprobs=logprobs,
            prompt_logprobs=logprobs if logprobs is not None and whole_prompt else None,
            structure=structure,
        )
        request = service.request("gen", sampling, pack_token_ids(ids), params)
        made.append(msgspec.structs.replace(request, adapter=adapter))
    return made, is_batch


def _adapters(service: Service, wanted: str | list[str | None] | None, count: int) -> list[str]:
    """The adapter of each prompt; empty: none."""
    if not isinstance(wanted, list):
        wanted = [wanted] * count
    elif len(wanted) != count:
        raise RequestError(f"lora_path names {len(wanted)} for {count} prompts", "lora_path")
    return [service.check_adapter(name, "lora_path") if name else "" for name in wanted]


def _is_list_of_lists(ids: list[int | list[int]] | None) -> bool:
    return bool(ids) and isinstance((ids or [0])[0], list)


def _prompts(body: SglangRequest) -> list[str | list[int]]:
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("give either text or input_ids", "text")
    if isinstance(body.text, str):
        return [body.text]
    if body.text is not None:
        if not body.text:
            raise RequestError("text is an empty list", "text")
        return list(body.text)
    ids = body.input_ids or []
    if not ids:
        raise RequestError("input_ids is empty: it must have at least one token", "input_ids")
    flat = [entry for entry in ids if isinstance(entry, int)]
    lists: list[str | list[int]] = [entry for entry in ids if isinstance(entry, list)]
    if flat and lists:
        raise RequestError("input_ids mixes numbers and lists", "input_ids")
    return [flat] if flat else lists


class _Answer:
    """One choice's answer while it grows; `to_json` is the object of SGLang's protocol."""

    def __init__(self, request: GenerateRequest, body: SglangRequest) -> None:
        self._request = request
        self._body = body
        self._text = ""
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        self._cached = 0
        self._weights = _FIRST_WEIGHTS
        self._finish: dict[str, Any] | None = None

    def started(self, output: RequestOutput) -> None:
        self._cached = output.cached_tokens or 0
        self._prompt_logprobs = output.prompt_logprobs or ()

    def computed_by(self, version: str) -> None:
        self._weights = version or _FIRST_WEIGHTS

    def take(self, delta: ChoiceDelta) -> None:
        self._text += delta.text
        self._ids.extend(delta.token_ids)
        self._logprobs.extend(delta.logprobs or ())
        if delta.finish_reason == "length":
            self._finish = {"type": "length", "length": len(self._ids)}
        elif delta.finish_reason is not None:
            self._finish = {"type": delta.finish_reason, "matched": delta.stop_reason}

    def to_json(self) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self._request.request_id,
            "finish_reason": self._finish,
            "prompt_tokens": self._request.num_tokens,
            "completion_tokens": len(self._ids),
            "cached_tokens": self._cached,
            "weight_version": self._weights,
        }
        if self._body.return_logprob:
            meta["output_token_logprobs"] = [_triple(entry) for entry in self._logprobs]
            meta["output_top_logprobs"] = [_top(entry) for entry in self._logprobs]
            prompt = list(zip(self._request.token_ids, self._prompt_logprobs, strict=False))
            meta["input_token_logprobs"] = [
                [None, i, None] if entry is None else _triple(entry) for i, entry in prompt
            ]
            meta["input_top_logprobs"] = [entry and _top(entry) for _, entry in prompt]
        return {"text": self._text, "output_ids": self._ids, "meta_info": meta}


def _triple(entry: TokenLogprob) -> list[Any]:
    return [max(entry.logprob, -9999.0), entry.token_id, None]


def _top(entry: TokenLogprob) -> list[Any]:
    return [[max(logprob, -9999.0), token_id, None] for token_id, logprob in entry.top]


async def _changes(
    service: Service, requests: list[GenerateRequest], answers: list[_Answer]
) -> AsyncGenerator[int]:
    """Feed the answers; yields the number of the answer that each token changed."""

    async def run(first: int, request: GenerateRequest) -> AsyncGenerator[int]:
        started = False
        async with aclosing(service.generate(request)) as outputs:
            async for output in outputs:
                own = answers[first : first + request.params.n]
                if not started:
                    started = True
                    for answer in own:
                        answer.started(output)
                if output.weight_version is not None:
                    for answer in own:
                        answer.computed_by(output.weight_version)
                for delta in output.choices:
                    answers[first + delta.index].take(delta)
                    yield first + delta.index

    first, sources = 0, []
    for request in requests:
        sources.append(run(first, request))
        first += request.params.n
    items = sources[0] if len(sources) == 1 else merged(sources)
    async with aclosing(items) as found:
        async for item in found:
            yield item


def _answers(requests: list[GenerateRequest], body: SglangRequest) -> list[_Answer]:
    return [_Answer(request, body) for request in requests for _ in range(request.params.n)]


async def _stream(
    service: Service, requests: list[GenerateRequest], body: SglangRequest, is_batch: bool
) -> AsyncGenerator[bytes]:
    answers = _answers(requests, body)
    indexed = is_batch or len(answers) > 1
    async with aclosing(_changes(service, requests, answers)) as changes:
        async for i in changes:
            answer = answers[i].to_json()
            if indexed:
                answer["index"] = i
            yield event(answer)


async def _whole(
    service: Service, requests: list[GenerateRequest], body: SglangRequest
) -> list[dict[str, Any]]:
    answers = _answers(requests, body)
    async with aclosing(_changes(service, requests, answers)) as changes:
        async for _ in changes:
            pass
    return [answer.to_json() for answer in answers]
