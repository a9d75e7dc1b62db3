"""`/v1/chat/completions`."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from inlay.serve.events import ChatDelta, ChatEnd, ChatStart, Usage
from inlay.serve.openai.errors import json_response
from inlay.serve.openai.http import REQUEST_ID, read_body
from inlay.serve.openai.logprobs import TokenNames, chat_logprobs
from inlay.serve.openai.protocol import ChatRequest, decode_body
from inlay.serve.openai.sse import CLIENT_CLOSED, EventStream, while_connected
from inlay.serve.service import ChatJob, Service

_decoder = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode


class ChatRoute:
    """Answers chat requests, streamed or whole."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._names = TokenNames(service.text)
        self._id_names = TokenNames(service.text, as_ids=True)

    async def handle(self, request: Request) -> Response:
        """The route."""
        raw = await read_body(request, self._service.config.max_body_bytes)
        body = decode_body(raw, _decoder)
        if body.request_id is None:
            body.request_id = request.headers.get(REQUEST_ID) or None
        job = await self._service.prepare_chat(body)
        request.state.request_id = job.request.request_id
        names = self._id_names if body.return_tokens_as_token_ids else self._names
        if body.stream:
            stream = EventStream(_stream(self._service, job, body, names))
            return await while_connected(request.receive, stream.start()) or Response(
                status_code=CLIENT_CLOSED
            )
        answer = await while_connected(request.receive, _whole(self._service, job, body, names))
        if answer is None:
            return Response(status_code=CLIENT_CLOSED)
        return json_response(answer)


async def _stream(
    service: Service, job: ChatJob, body: ChatRequest, names: TokenNames
) -> AsyncGenerator[bytes]:
    """Chunks of a streamed answer, one event per token after the role.

    The text chunk, by far the most frequent, is put together from prepared bytes.
    """
    options = body.stream_options
    with_usage = bool(options and options.include_usage)
    in_every_chunk = with_usage and bool(options and options.continuous_usage_stats)
    head = b"".join(
        (
            b'data: {"id":',
            _encode(job.request.request_id),
            b',"object":"chat.completion.chunk","created":%d,"model":' % int(time.time()),
            _encode(job.name),
            b',"choices":[',
        )
    )
    no_usage = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"
    plain = not (in_every_chunk or body.logprobs or body.return_token_ids)
    opening = [head + b'{"index":%d,"delta":{"content":' % i for i in range(job.request.params.n)]
    closing = b'},"logprobs":null,"finish_reason":null}' + no_usage
    prompt_tokens, completion_tokens, cached = job.request.num_tokens, 0, 0
    tier_tokens: dict[str, int] | None = None

    def tail() -> bytes:
        if not in_every_chunk:
            return no_usage
        usage = Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=cached,
            tier_tokens=tier_tokens,
        )
        return b'],"usage":' + _encode(usage.to_openai()) + b"}\n\n"

    async with aclosing(service.run_chat(job)) as events:
        async for happened in events:
            if type(happened) is ChatDelta:
                completion_tokens += len(happened.token_ids)
                if (
                    plain
                    and happened.content
                    and happened.finish_reason is None
                    and happened.tool_call is None
                ):
                    yield opening[happened.index] + _encode(happened.content) + closing
                else:
                    yield head + _encode(_chunk_choice(happened, body, names)) + tail()
            elif type(happened) is ChatStart:
                cached, tier_tokens = happened.cached_tokens, happened.tier_tokens
                for index in range(happened.choices):
                    choice: dict[str, Any] = {
                        "index": index,
                        "delta": {"role": "assistant", "content": ""},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                    ids = b""
                    if body.return_token_ids:
                        ids = b',"prompt_token_ids":' + _encode(job.request.token_ids)
                    end = tail()
                    yield head + _encode(choice) + b"]" + ids + end[1:]
            elif type(happened) is ChatEnd and with_usage:
                usage = _encode(happened.usage.to_openai())
                yield head + b'],"usage":' + usage + b"}\n\n"


def _chunk_choice(event: ChatDelta, body: ChatRequest, names: TokenNames) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    if event.content:
        delta["content"] = event.content
    if event.reasoning:
        delta["reasoning_content"] = event.reasoning
    if event.tool_call is not None:
        delta["tool_calls"] = [_call_delta(event)]
    choice: dict[str, Any] = {
        "index": event.index,
        "delta": delta,
        "logprobs": None,
        "finish_reason": event.finish_reason,
    }
    if event.logprobs is not None:
        choice["logprobs"] = chat_logprobs(event.logprobs, names)
    if event.stop_reason is not None:
        choice["stop_reason"] = event.stop_reason
    if body.return_token_ids:
        choice["token_ids"] = event.token_ids
    return choice


def _call_delta(event: ChatDelta) -> dict[str, Any]:
    call = event.tool_call
    assert call is not None
    if call.name is None:
        return {"index": call.call, "function": {"arguments": call.arguments}}
    return {
        "index": call.call,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


class _Message:
    """One choice of a whole answer while it grows."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.logprobs: list[Any] = []
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def take(self, event: ChatDelta) -> None:
        self.content.append(event.content)
        self.reasoning.append(event.reasoning)
        self.token_ids.extend(event.token_ids)
        self.logprobs.extend(event.logprobs or ())
        if event.tool_call is not None:
            if event.tool_call.name is not None:
                self.calls.append(_call_delta(event))
                del self.calls[-1]["index"]
            else:
                self.calls[-1]["function"]["arguments"] += event.tool_call.arguments
        if event.finish_reason is not None:
            self.finish_reason, self.stop_reason = event.finish_reason, event.stop_reason

    def to_openai(self, body: ChatRequest, names: TokenNames) -> dict[str, Any]:
        content: str | None = "".join(self.content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.calls:
            message["content"] = content or None
            message["tool_calls"] = self.calls
        reasoning = "".join(self.reasoning)
        if reasoning:
            message["reasoning_content"] = reasoning
        choice: dict[str, Any] = {
            "index": self.index,
            "message": message,
            "logprobs": chat_logprobs(self.logprobs, names) if body.logprobs else None,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
        }
        if body.return_token_ids:
            choice["token_ids"] = self.token_ids
        return choice


async def _whole(
    service: Service, job: ChatJob, body: ChatRequest, names: TokenNames
) -> dict[str, Any]:
    messages = [_Message(i) for i in range(job.request.params.n)]
    usage: Usage | None = None
    async with aclosing(service.run_chat(job)) as events:
        async for happened in events:
            if type(happened) is ChatDelta:
                messages[happened.index].take(happened)
            elif type(happened) is ChatEnd:
                usage = happened.usage
    answer: dict[str, Any] = {
        "id": job.request.request_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": job.name,
        "choices": [message.to_openai(body, names) for message in messages],
        "usage": usage.to_openai() if usage is not None else None,
        "system_fingerprint": None,
    }
    if body.return_token_ids:
        answer["prompt_token_ids"] = job.request.token_ids
    return answer
