"""Bad requests get OpenAI's error form; endings on either side are told to the other."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import ArgumentError, EngineDiedError
from inlay.serve.app import create_app
from inlay.serve.config import ServeConfig
from tests.unit.serve.conftest import Api
from tests.unit.serve.stand_in import CONTEXT, make_service
from tests.unit.serve.test_chat_api import CHAT, HI, WEATHER

COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"messages": "hi"}, "messages", '"hi"'),
        ({"messages": []}, "messages", "empty"),
        ({"messages": None}, "messages", "empty"),
        ({"messages": [1]}, "messages[0]", "must be an object"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role", "'robot'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
            "reads text only",
        ),
        ({"max_tokens": "ten"}, "max_tokens", 'must be an integer, but is a text ("ten")'),
        ({"max_tokens": 1.5}, "max_tokens", "(1.5)"),
        ({"max_tokens": 0}, "max_tokens", "is 0"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "is -1"),
        ({"temperature": -1}, "temperature", "is -1"),
        ({"temperature": "hot"}, "temperature", "must be a number"),
        ({"temperature": True}, "temperature", "true"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_p": 1.1}, "top_p", "0..1"),
        ({"top_k": -2}, "top_k", "is -2"),
        ({"n": 0}, "n", "is 0"),
        ({"n": 10**30}, "n", "is 1000"),
        ({"seed": 2**64}, "seed", "64 bits"),
        ({"priority": 2**40}, "priority", "32 bits"),
        ({"service_tier": "gold"}, "service_tier", "may be auto, default, flex, priority"),
        ({"stop": ["a", ""]}, "stop", "empty"),
        ({"stop": 5}, "stop", "must be a text or a list"),
        ({"stop_token_ids": [10**9]}, "stop_token_ids", "1000000000"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x'"),
        ({"logit_bias": {"1": 101}}, "logit_bias[1]", "101"),
        ({"min_tokens": 5, "max_tokens": 3}, "min_tokens", "max_tokens (3)"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 50}, "top_logprobs", "is 50"),
        ({"logprobs": 1}, "logprobs", "true or false"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "(1)"),
        ({"response_format": {"type": "xml"}}, "response_format", "'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "missing"),
        ({"guided_choice": []}, "guided_choice", "one or more"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "together"),
        ({"tools": [{"type": "x"}]}, "tools[0]", "'x'"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "function"),
        ({"tool_choice": "required"}, "tool_choice", "without tools"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice", "'sometimes'"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
            "'f'",
        ),
        (
            {
                "tools": [WEATHER],
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
            },
            "tool_choice",
            "another grammar",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "'messages'"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs", "'self'"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "'99999999999999999999...'"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"$defs": 3}}}
                ],
                "tool_choice": "required",
            },
            "tools[0]",
            "parameters.$defs must be an object",
        ),
    ],
)
async def test_wrong_values(api: Api, fields: dict[str, Any], param: str, said: str) -> None:
    async with api() as (client, engine):
        answer = await client.post(CHAT, json={"messages": HI, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert said in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"nonsense", b"[" * 100_000, b'{"a":' * 50_000]
)
async def test_no_json(api: Api, body: bytes) -> None:
    async with api() as (client, _):
        for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/generate"):
            answer = await client.post(path, content=body)
            assert answer.status_code == 400
            assert "body" in answer.json()["error"]["message"]


async def test_context_length(api: Api) -> None:
    async with api() as (client, engine):
        count = len(engine.text.encode("a")) * CONTEXT
        for fields in (
            {"prompt": [5] * CONTEXT},
            {"prompt": [5] * CONTEXT, "max_tokens": 1},
            {"prompt": [5] * 10, "max_tokens": CONTEXT},
        ):
            answer = await client.post(COMPLETIONS, json=fields)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert str(CONTEXT) in answer.json()["error"]["message"]
        messages = [{"role": "user", "content": "a " * count}]
        answer = await client.post(CHAT, json={"messages": messages})
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        # What is not asked for is shortened to fit.
        answer = await client.post(COMPLETIONS, json={"prompt": [5] * (CONTEXT - 3)})
        assert engine.requests[-1].params.max_tokens == 3


async def test_unknown_model_and_names(api: Api) -> None:
    async with api(served_model_name="a, b") as (client, _):
        answer = await client.post(CHAT, json={"messages": HI, "model": "tiny"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert (await client.post(CHAT, json={"messages": HI, "model": "b"})).json()["model"] == "b"
        assert (await client.post(CHAT, json={"messages": HI})).json()["model"] == "a"
        models = (await client.get("/v1/models")).json()
        assert [card["id"] for card in models["data"]] == ["a", "b"]
        assert models["data"][0]["max_model_len"] == CONTEXT
        assert (await client.get("/v1/models/a")).json()["id"] == "a"
        assert (await client.get("/v1/models/x/y")).status_code == 404


async def test_unknown_paths_and_methods(api: Api) -> None:
    async with api() as (client, _):
        answer = await client.get("/v1/nothing")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        answer = await client.get(CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_api_key(api: Api) -> None:
    async with api(api_key="secret", cors_origins=("http://ui",)) as (client, engine):
        assert (await client.get("/health")).status_code == 200
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic secret"},
            {"X-API-Key": "wrong"},
            {"X-API-Key": ""},
            {"Authorization": "Bearer s\xe9cret".encode("latin-1")},
        ):
            answer = await client.post(CHAT, json={"messages": HI}, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert (await client.get("/metrics", headers=headers)).status_code == 401
        assert engine.requests == []
        for headers in ({"Authorization": "Bearer secret"}, {"X-API-Key": "secret"}):
            answer = await client.post(CHAT, json={"messages": HI}, headers=headers)
            assert answer.status_code == 200
        answer = await client.options(
            CHAT, headers={"Origin": "http://ui", "Access-Control-Request-Method": "POST"}
        )
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "http://ui"
        answer = await client.post(CHAT, json={"messages": HI}, headers={"Origin": "http://ui"})
        assert answer.headers["access-control-allow-origin"] == "http://ui"


async def test_body_limit(api: Api) -> None:
    async with api(max_body_bytes=2000) as (client, _):
        messages = [{"role": "user", "content": "a" * 3000}]
        answer = await client.post(CHAT, json={"messages": messages})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")

        async def chunks() -> Any:
            for _ in range(30):
                yield b" " * 100

        answer = await client.post(CHAT, content=chunks())
        assert answer.status_code == 413


async def test_full_queue(api: Api) -> None:
    async with api() as (client, engine):
        engine.fails_after = 0
        for stream in (False, True):
            answer = await client.post(CHAT, json={"messages": HI, "stream": stream})
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "3"
            assert answer.json()["error"]["code"] == "overloaded"


async def test_failure_while_streaming(api: Api) -> None:
    async with api() as (client, engine):
        engine.fails_after = 2
        engine.error = EngineDiedError("the engine's process ended")
        for path, body in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": ["a", "b"]})):
            answer = await client.post(path, json={**body, "stream": True})
            *_, last, done, end = answer.text.split("\n\n")
            assert (done, end) == ("data: [DONE]", "")
            error = json.loads(last.removeprefix("data: "))["error"]
            assert error["code"] == "engine_died"
            answer = await client.post(path, json=body)
            assert answer.status_code == 503


@pytest.mark.parametrize("error", [ZeroDivisionError("a secret"), ArgumentError("a secret")])
async def test_bugs_are_not_shown(
    api: Api, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async with api() as (client, engine):
        engine.fails_after = 0
        engine.error = error  # type: ignore[assignment]
        answer = await client.post(CHAT, json={"messages": HI})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["error"]["type"] == "server_error"
    assert "a request failed unexpectedly" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HI}),
        (COMPLETIONS, {"prompt": ["a", "b"]}),
        ("/generate", {"text": "a"}),
    ],
)
async def test_client_goes_away(
    tokenizer_directory: Path, path: str, body: dict[str, Any], stream: bool
) -> None:
    config = ServeConfig(page=False)
    service, engine = make_service(tokenizer_directory, config)
    engine.step_s = None
    app = create_app(service, config)
    sent: list[dict[str, Any]] = []
    gone = asyncio.Event()
    messages = [
        {
            "type": "http.request",
            "body": json.dumps({**body, "stream": stream}).encode(),
            "more_body": False,
        }
    ]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
    }
    running = asyncio.ensure_future(app(scope, receive, send))
    expected = 2 if path == COMPLETIONS else 1
    while len(engine.requests) < expected or (stream and len(sent) < 2):
        await asyncio.sleep(0.001)
    assert engine.cancelled == []
    gone.set()
    await asyncio.wait_for(running, 5)
    assert sorted(engine.cancelled) == sorted(r.request_id for r in engine.requests)
    assert service.active == 0


async def test_closing_the_service_iterator_cancels(tokenizer_directory: Path) -> None:
    from inlay.serve.openai.protocol import ChatRequest

    service, engine = make_service(tokenizer_directory)
    events = service.chat(ChatRequest(messages=HI))
    await anext(events)
    await anext(events)
    await events.aclose()
    assert len(engine.cancelled) == 1
    assert service.active == 0
