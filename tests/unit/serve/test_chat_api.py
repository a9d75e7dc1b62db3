"""`/v1/chat/completions` on a stand-in engine: forms of answers and streams."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.serve.conftest import Api

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream; checks its frame."""
    assert text.endswith("data: [DONE]\n\n")
    parts = text.removesuffix("data: [DONE]\n\n").split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


async def test_whole_answer(api: Api) -> None:
    async with api() as (client, engine):
        answer = (await client.post(CHAT, json={"messages": HI})).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert answer["id"].startswith("chatcmpl-")
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello there.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    prompt = len(engine.requests[0].token_ids)
    tokens = len(engine.text.encode("Hello there."))
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    assert engine.requests[0].params.temperature == 1.0
    assert engine.cancelled == []


async def test_stream_has_one_event_per_token(api: Api) -> None:
    async with api(says="Grüße 🙂 aus Köln") as (client, engine):
        body = {"messages": HI, "stream": True, "stream_options": {"include_usage": True}}
        found = events((await client.post(CHAT, json=body)).text)
    role, *tokens, usage = found
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == len(engine.text.encode("Grüße 🙂 aus Köln"))
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in tokens) == (
        "Grüße 🙂 aus Köln"
    )
    reasons = [e["choices"][0]["finish_reason"] for e in tokens]
    assert reasons == [None] * (len(tokens) - 1) + ["stop"]
    assert all(e["usage"] is None for e in found[:-1])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(tokens)
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    assert len({e["id"] for e in found}) == 1
    assert {e["object"] for e in found} == {"chat.completion.chunk"}


async def test_usage_in_every_chunk(api: Api) -> None:
    async with api() as (client, _):
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"messages": HI, "stream": True, "stream_options": options}
        found = events((await client.post(CHAT, json=body)).text)
    counts = [e["usage"]["completion_tokens"] for e in found]
    assert counts == [*range(len(found) - 1), len(found) - 2]


async def test_several_choices(api: Api) -> None:
    async with api() as (client, _):
        answer = (await client.post(CHAT, json={"messages": HI, "n": 3})).json()
        found = events(
            (await client.post(CHAT, json={"messages": HI, "n": 2, "stream": True})).text
        )
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = {0: "", 1: ""}
    for chunk in found:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "Hello there.", 1: "Hello there."}


async def test_logprobs(api: Api) -> None:
    async with api(says="Grüße") as (client, engine):
        body = {"messages": HI, "logprobs": True, "top_logprobs": 3}
        whole = (await client.post(CHAT, json=body)).json()["choices"][0]["logprobs"]
        found = events((await client.post(CHAT, json={**body, "stream": True})).text)
    streamed = [e["choices"][0]["logprobs"]["content"] for e in found[1:]]
    assert [entry for entries in streamed for entry in entries] == whole["content"]
    raw = b"".join(bytes(entry["bytes"]) for entry in whole["content"])
    assert raw.decode() == "Grüße"
    first = whole["content"][0]
    assert first["logprob"] == -0.5
    assert [top["logprob"] for top in first["top_logprobs"]] == [-0.5, -1.5, -9999.0]


async def test_tool_calls(api: Api) -> None:
    says = (
        "<think>\nhm\n</think>\n\nLooking.\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    )
    body = {"messages": HI, "tools": [WEATHER]}
    async with api(says=says) as (client, engine):
        choice = (await client.post(CHAT, json=body)).json()["choices"][0]
        found = events((await client.post(CHAT, json={**body, "stream": True})).text)
        prompt = engine.text.decode(engine.requests[0].token_ids, skip_special_tokens=False)
    assert '"name": "get_weather"' in prompt
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "Looking."
    assert message["reasoning_content"] == "hm"
    [call] = message["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    deltas = [e["choices"][0]["delta"] for e in found]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert calls[0]["id"] and calls[0]["type"] == "function"
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Paris"}'
    assert all(call["index"] == 0 and "id" not in call for call in calls[1:])
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
async def test_forced_tool_calls(api: Api, choice: object) -> None:
    arguments = '{"city": "Rome"}'
    says = arguments
    if choice == "required":
        says = f'[{{"name": "get_weather", "arguments": {arguments}}}]'
    async with api(says=says) as (client, engine):
        body = {"messages": HI, "tools": [WEATHER], "tool_choice": choice}
        answer = (await client.post(CHAT, json=body)).json()["choices"][0]
        structure = engine.requests[0].params.structure
        prompt = engine.text.decode(engine.requests[0].token_ids, skip_special_tokens=False)
    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert structure is not None and structure.kind == "json_schema"
    schema = json.loads(structure.value)
    if choice == "required":
        assert schema["items"]["properties"]["name"] == {"const": "get_weather"}
    else:
        assert schema == WEATHER["function"]["parameters"]  # type: ignore[index]
    [call] = answer["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": arguments}
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
async def test_arguments_are_objects_where_the_schema_does_not_say(
    api: Api, choice: object
) -> None:
    tool = json.loads(json.dumps(WEATHER))
    del tool["function"]["parameters"]["type"]
    async with api(says="{}") as (client, engine):
        body = {"messages": HI, "tools": [tool], "tool_choice": choice}
        await client.post(CHAT, json=body)
        structure = engine.requests[0].params.structure
    assert structure is not None
    schema = json.loads(structure.value)
    if choice == "required":
        schema = schema["items"]["properties"]["arguments"]
    assert schema["type"] == "object" and "city" in schema["properties"]


async def test_definitions_of_tools_move_to_the_top(api: Api) -> None:
    tool = json.loads(json.dumps(WEATHER))
    tool["function"]["parameters"]["properties"]["city"] = {"$ref": "#/$defs/City"}
    tool["function"]["parameters"]["$defs"] = {
        "City": {"type": "object", "properties": {"in": {"$ref": "#/$defs/Land"}}},
        "Land": {"enum": ["fr"]},
    }
    async with api(says="[]") as (client, engine):
        body = {"messages": HI, "tools": [tool, WEATHER], "tool_choice": "required"}
        body["parallel_tool_calls"] = False
        await client.post(CHAT, json=body)
        structure = engine.requests[0].params.structure
    assert structure is not None
    schema = json.loads(structure.value)
    assert schema["maxItems"] == 1
    city = schema["items"]["anyOf"][0]["properties"]["arguments"]["properties"]["city"]
    assert city == {"$ref": "#/$defs/tool0_City"}
    assert schema["$defs"]["tool0_City"]["properties"]["in"] == {"$ref": "#/$defs/tool0_Land"}


async def test_tool_choice_none_leaves_tools_out(api: Api) -> None:
    async with api() as (client, engine):
        body = {"messages": HI, "tools": [WEATHER], "tool_choice": "none"}
        assert (await client.post(CHAT, json=body)).status_code == 200
        prompt = engine.text.decode(engine.requests[0].token_ids, skip_special_tokens=False)
    assert "get_weather" not in prompt


async def test_template_without_tools(api: Api, tokenizer_directory: Path, tmp_path: Path) -> None:
    for file in tokenizer_directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    async with api(directory=tmp_path) as (client, engine):
        assert (await client.post(CHAT, json={"messages": HI})).status_code == 200
        answer = await client.post(CHAT, json={"messages": HI, "tools": [WEATHER]})
        assert answer.status_code == 200
        plain, described = (
            engine.text.decode(request.token_ids, skip_special_tokens=False)
            for request in engine.requests
        )
    assert "get_weather" not in plain
    assert "get_weather" in described and '<tool_call>\n{"name": ' in described


async def test_messages_of_all_roles(api: Api) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    async with api() as (client, engine):
        answer = await client.post(CHAT, json={"messages": messages})
        assert answer.status_code == 200
        prompt = engine.text.decode(engine.requests[0].token_ids, skip_special_tokens=False)
    assert "<|im_start|>system\nBe brief." in prompt
    assert "A\nB" in prompt
    assert '"arguments": {"a": 1}' in prompt
    assert "<tool_response>\n42" in prompt


async def test_everything_that_is_passed_on(api: Api) -> None:
    body = {
        "messages": HI,
        "model": "tiny",
        "temperature": 0.3,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 10},
        "stop": ["x", "y"],
        "stop_token_ids": [3],
        "max_completion_tokens": 7,
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": True,
        "seed": -1,
        "skip_special_tokens": False,
        "priority": -3,
        "service_tier": "flex",
        "cache_salt": "a",
        "user": "someone",
        "chat_template_kwargs": {"enable_thinking": False},
        "logprobs": None,
        "unknown": {"field": 1},
        "metadata": None,
    }
    async with api() as (client, engine):
        assert (await client.post(CHAT, json=body)).status_code == 200
        [request] = engine.requests
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.3, 0.9, 0, 0.1)
    assert (params.presence_penalty, params.frequency_penalty) == (1, -1)
    assert params.repetition_penalty == 1.1
    assert params.logit_bias == {5: 10.0}
    assert params.stop == ("x", "y") and params.stop_token_ids == (3,)
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (7, 2, True)
    assert params.seed == 2**63 - 1
    assert not params.skip_special_tokens
    assert (request.priority, request.slo, request.cache_salt) == (-3, "flex", "a")
    prompt = engine.text.decode(request.token_ids, skip_special_tokens=False)
    assert prompt.endswith("<think>\n\n</think>\n\n")


async def test_defaults_of_the_model(api: Api, tokenizer_directory: Path, tmp_path: Path) -> None:
    for file in tokenizer_directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    found = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_new_tokens": 5, "min_p": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(found))
    async with api(directory=tmp_path) as (client, engine):
        await client.post(CHAT, json={"messages": HI})
        await client.post(CHAT, json={"messages": HI, "temperature": 0})
    params = engine.requests[0].params
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.95, 20)
    assert params.max_tokens == 5
    assert engine.requests[1].params.temperature == 0


async def test_token_ids_and_own_request_id(api: Api) -> None:
    async with api() as (client, engine):
        body = {"messages": HI, "return_token_ids": True, "request_id": "mine"}
        whole = (await client.post(CHAT, json=body)).json()
        again = (await client.post(CHAT, json=body)).json()
        found = events((await client.post(CHAT, json={**body, "stream": True})).text)
    ids = engine.text.encode("Hello there.")
    assert "mine" in whole["id"]
    assert whole["id"] != again["id"]
    assert whole["prompt_token_ids"] == engine.requests[0].token_ids
    assert whole["choices"][0]["token_ids"] == ids
    assert found[0]["prompt_token_ids"] == engine.requests[0].token_ids
    assert [i for e in found[1:] for i in e["choices"][0]["token_ids"]] == ids


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
            "json_schema",
            '{"a":1}',
        ),
        ({"guided_json": {"type": "object"}}, "json_schema", '{"type":"object"}'),
        ({"guided_json": '{"type":"array"}'}, "json_schema", '{"type":"array"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a","b"]'),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", '["a"]'),
        ({"structured_outputs": {"regex": "b", "json": None}}, "regex", "b"),
    ],
)
async def test_structures(api: Api, fields: dict[str, Any], kind: str, value: str) -> None:
    async with api() as (client, engine):
        assert (await client.post(CHAT, json={"messages": HI, **fields})).status_code == 200
        structure = engine.requests[0].params.structure
    assert structure is not None
    assert (structure.kind, structure.value) == (kind, value)
