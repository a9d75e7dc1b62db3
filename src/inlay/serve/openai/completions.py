"""`/v1/completions`: texts or tokens in, one or several prompts, echo and log probabilities."""

import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from inlay.core.messages import ChoiceDelta, GenerateRequest, RequestOutput, TokenLogprob
from inlay.serve.events import Usage
from inlay.serve.openai.completion_job import (
    CompletionJob,
    prepare_completion,
    read_completion,
)
from inlay.serve.openai.errors import json_response
from inlay.serve.openai.http import REQUEST_ID, read_body
from inlay.serve.openai.logprobs import CompletionLogprobs, TokenNames
from inlay.serve.openai.protocol import CompletionRequest
from inlay.serve.openai.sse import CLIENT_CLOSED, EventStream, merged, while_connected
from inlay.serve.service import Service

_encode = msgspec.json.Encoder().encode


class CompletionRoute:
    """Answers completion requests, streamed or whole."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._names = TokenNames(service.text)
        self._id_names = TokenNames(service.text, as_ids=True)

    async def handle(self, request: Request) -> Response:
        """The route."""
        raw = await read_body(request, self._service.config.max_body_bytes)
        body, prompts = read_completion(raw, self._service.limits.vocab_size)
        if body.request_id is None:
            body.request_id = request.headers.get(REQUEST_ID) or None
        job = await prepare_completion(self._service, body, prompts)
        request.state.request_id = job.answer_id
        names = self._id_names if body.return_tokens_as_token_ids else self._names
        choices = [
            _Choice(self._service, job, body, names, prompt, i)
            for prompt in range(len(job.requests))
            for i in range(job.choices_per_prompt)
        ]
        if body.stream:
            stream = EventStream(_stream(self._service, job, body, choices))
            return await while_connected(request.receive, stream.start()) or Response(
                status_code=CLIENT_CLOSED
            )
        answer = await while_connected(request.receive, _whole(self._service, job, body, choices))
        if answer is None:
            return Response(status_code=CLIENT_CLOSED)
        return json_response(answer)


class _Choice:
    """One choice of an answer: turns deltas into the protocol's objects and keeps count."""

    def __init__(
        self,
        service: Service,
        job: CompletionJob,
        body: CompletionRequest,
        names: TokenNames,
        prompt: int,
        position: int,
    ) -> None:
        self.index = prompt * job.choices_per_prompt + position
        self.prompt = prompt
        self._echo = bool(body.echo)
        self._prompt_text = job.prompts[prompt]
        self._request = job.requests[prompt]
        self._drop_output = job.drop_output
        self._with_ids = bool(body.return_token_ids)
        self._logprobs: CompletionLogprobs | None = None
        if body.logprobs is not None:
            self._logprobs = CompletionLogprobs(names, body.logprobs)
        self.tokens = 0

    def opening(
        self, prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    ) -> dict[str, Any] | None:
        """The echoed prompt, if it is asked for."""
        if not self._echo:
            return None
        made = self._made(self._prompt_text, (), None, None)
        if self._logprobs is not None:
            known = prompt_logprobs or (None,) * self._request.num_tokens
            made["logprobs"] = self._logprobs.take(self._request.token_ids, known)
        return made

    def empty(self) -> dict[str, Any]:
        """A choice object without text."""
        return self._made("", (), None, None)

    def take(self, delta: ChoiceDelta) -> dict[str, Any]:
        """What a step added, as a choice object."""
        if self._drop_output:
            return self._made("", (), delta.finish_reason and "length", None)
        self.tokens += len(delta.token_ids)
        made = self._made(delta.text, delta.token_ids, delta.finish_reason, delta.stop_reason)
        if self._logprobs is not None:
            made["logprobs"] = self._logprobs.take(delta.token_ids, delta.logprobs or ())
        return made

    def _made(
        self,
        text: str,
        token_ids: tuple[int, ...],
        finish_reason: str | None,
        stop_reason: int | str | None,
    ) -> dict[str, Any]:
        made: dict[str, Any] = {
            "index": self.index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        }
        if self._with_ids:
            made["token_ids"] = token_ids
        return made

    def with_prompt_ids(self, made: dict[str, Any]) -> dict[str, Any]:
        """Add the prompt's tokens, if they are asked for."""
        if self._with_ids:
            made["prompt_token_ids"] = self._request.token_ids
        return made


class _Usage:
    """Token counts over all prompts of an answer."""

    def __init__(self, job: CompletionJob) -> None:
        self._prompt_tokens = sum(request.num_tokens for request in job.requests)
        self.completion = 0
        self._cached = 0
        self._tiers: Counter[str] = Counter()

    def started(self, output: RequestOutput) -> None:
        """Count the first output of a prompt."""
        self._cached += output.cached_tokens or 0
        self._tiers.update(output.tier_tokens or {})

    def to_openai(self) -> dict[str, object]:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self.completion,
            cached_tokens=self._cached,
            tier_tokens=dict(self._tiers),
        ).to_openai()


def _outputs(service: Service, job: CompletionJob) -> AsyncGenerator[tuple[int, RequestOutput]]:
    """Outputs of all prompts as they come, each with its prompt's number."""

    async def numbered(
        i: int, request: GenerateRequest
    ) -> AsyncGenerator[tuple[int, RequestOutput]]:
        async with aclosing(service.generate(request)) as outputs:
            async for output in outputs:
                yield i, output

    sources = [numbered(i, request) for i, request in enumerate(job.requests)]
    return sources[0] if len(sources) == 1 else merged(sources)


async def _stream(
    service: Service, job: CompletionJob, body: CompletionRequest, choices: list[_Choice]
) -> AsyncGenerator[bytes]:
    """Chunks of a streamed answer, one event per token; plain ones from prepared bytes."""
    options = body.stream_options
    with_usage = bool(options and options.include_usage)
    in_every_chunk = with_usage and bool(options and options.continuous_usage_stats)
    head = b"".join(
        (
            b'data: {"id":',
            _encode(job.answer_id),
            b',"object":"text_completion","created":%d,"model":' % int(time.time()),
            _encode(job.name),
            b',"choices":[',
        )
    )
    no_usage = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"
    plain = not (in_every_chunk or body.return_token_ids or job.drop_output)
    plain = plain and body.logprobs is None
    opening = [head + b'{"index":%d,"text":' % choice.index for choice in choices]
    closing = b',"logprobs":null,"finish_reason":null,"stop_reason":null}' + no_usage
    started = [False] * len(job.requests)
    usage = _Usage(job)
    n = job.choices_per_prompt

    def chunk(choice: dict[str, Any]) -> bytes:
        if in_every_chunk:
            tail = b'],"usage":' + _encode(usage.to_openai()) + b"}\n\n"
        else:
            tail = no_usage
        return head + _encode(choice) + tail

    async with aclosing(_outputs(service, job)) as outputs:
        async for prompt, output in outputs:
            if not started[prompt]:
                started[prompt] = True
                usage.started(output)
                for choice in choices[prompt * n : (prompt + 1) * n]:
                    made = choice.opening(output.prompt_logprobs)
                    if made is None and body.return_token_ids:
                        made = choice.empty()
                    if made is not None:
                        yield chunk(choice.with_prompt_ids(made))
            for delta in output.choices:
                choice = choices[prompt * n + delta.index]
                tokens = len(delta.token_ids)
                if not job.drop_output:
                    usage.completion += tokens
                if plain and tokens == 1 and delta.finish_reason is None:
                    yield opening[choice.index] + _encode(delta.text) + closing
                    continue
                for part in _single_tokens(delta):
                    made = choice.take(part)
                    if made["finish_reason"] is not None or not job.drop_output:
                        yield chunk(made)
    if with_usage:
        yield head + b'],"usage":' + _encode(usage.to_openai()) + b"}\n\n"


def _single_tokens(delta: ChoiceDelta) -> list[ChoiceDelta]:
    """A step's tokens one by one; the text comes with the first, the end with the last."""
    count = len(delta.token_ids)
    if count <= 1:
        return [delta]
    return [
        ChoiceDelta(
            index=delta.index,
            text=delta.text if i == 0 else "",
            token_ids=delta.token_ids[i : i + 1],
            logprobs=None if delta.logprobs is None else delta.logprobs[i : i + 1],
            finish_reason=delta.finish_reason if i == count - 1 else None,
            stop_reason=delta.stop_reason if i == count - 1 else None,
        )
        for i in range(count)
    ]


async def _whole(
    service: Service, job: CompletionJob, body: CompletionRequest, choices: list[_Choice]
) -> dict[str, Any]:
    parts: list[list[dict[str, Any]]] = [[] for _ in choices]
    usage = _Usage(job)
    started = [False] * len(job.requests)
    n = job.choices_per_prompt
    async with aclosing(_outputs(service, job)) as outputs:
        async for prompt, output in outputs:
            if not started[prompt]:
                started[prompt] = True
                usage.started(output)
                for choice in choices[prompt * n : (prompt + 1) * n]:
                    made = choice.opening(output.prompt_logprobs)
                    if made is not None:
                        parts[choice.index].append(made)
            for delta in output.choices:
                choice = choices[prompt * n + delta.index]
                parts[choice.index].append(choice.take(delta))
    usage.completion = sum(choice.tokens for choice in choices)
    return {
        "id": job.answer_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": job.name,
        "choices": [
            choice.with_prompt_ids(_joined(parts[choice.index], body)) for choice in choices
        ],
        "usage": usage.to_openai(),
    }


def _joined(parts: list[dict[str, Any]], body: CompletionRequest) -> dict[str, Any]:
    """One choice object of all that came for it."""
    made = dict(parts[-1])
    made["text"] = "".join(part["text"] for part in parts)
    if body.logprobs is not None:
        lists = [part["logprobs"] for part in parts if part["logprobs"] is not None]
        made["logprobs"] = {
            key: [item for each in lists for item in each[key]]
            for key in ("text_offset", "token_logprobs", "tokens", "top_logprobs")
        }
    if body.return_token_ids:
        made["token_ids"] = [i for part in parts for i in part["token_ids"]]
    return made
