"""The unmodified `openai` client against a real server and engine with a tiny random model."""

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from inlay.models.text import Text
from tests.e2e.conftest import CONTEXT, ENDLESS
from tests.support.server import RunningServer

HI: Any = [{"role": "user", "content": "What does lantern mean?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "hourly": {"type": "boolean"},
    },
    "required": ["city", "unit", "days", "hourly"],
    "additionalProperties": False,
}
TIME_SCHEMA = {
    "type": "object",
    "properties": {"zone": {"$ref": "#/$defs/zone"}},
    "required": ["zone"],
    "additionalProperties": False,
    "$defs": {"zone": {"enum": ["UTC", "CET"]}},
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "Weather.", "parameters": SCHEMA},
    },
    {"type": "function", "function": {"name": "get_time", "parameters": TIME_SCHEMA}},
]


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> Text:
    return Text.load(tiny_model)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "alias"]
    assert client.models.retrieve("alias").id == "alias"


def test_chat(client: openai.OpenAI, text: Text) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.content
    assert answer.usage is not None and answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == len(text.encode_chat(HI))
    again = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    assert again.choices[0].message.content == choice.message.content
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_stream_equals_whole(client: openai.OpenAI) -> None:
    settings: Any = {
        "model": "tiny",
        "messages": HI,
        "max_tokens": 20,
        "temperature": 0.8,
        "seed": 7,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**settings)
    chunks = list(
        client.chat.completions.create(
            **settings, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    message: Any = whole.choices[0].message
    parts = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(part.content or "" for part in parts) == message.content
    reasoning = "".join(getattr(part, "reasoning_content", None) or "" for part in parts)
    assert reasoning == (getattr(message, "reasoning_content", None) or "")
    assert len(parts) == 21
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 20


def test_seeds_and_choices(client: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=8, temperature=1, seed=seed, n=3
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)
    assert len(set(ask(1))) > 1


def test_chat_logprobs(client: openai.OpenAI, text: Text) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=HI,
        max_tokens=6,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    choice: Any = answer.choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 6 == len(choice.token_ids)
    for token_id, entry in zip(choice.token_ids, choice.logprobs.content, strict=True):
        assert entry.token == text.token_text(token_id)
        assert bytes(entry.bytes or []) == text.token_bytes(token_id)
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)
        assert entry.logprob < 0


def test_completions(client: openai.OpenAI, text: Text) -> None:
    prompt = "The lantern hangs"
    ids = text.encode(prompt)
    settings: Any = {"model": "tiny", "max_tokens": 5, "temperature": 0}
    settings["extra_body"] = {"ignore_eos": True}
    by_text = client.completions.create(prompt=prompt, **settings)
    by_ids = client.completions.create(prompt=ids, **settings)
    both = client.completions.create(prompt=[ids, text.encode("A carpenter")], **settings)
    assert by_text.choices[0].text == by_ids.choices[0].text == both.choices[0].text
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.usage is not None and both.usage.completion_tokens == 10
    chunks = list(client.completions.create(prompt=prompt, stream=True, **settings))
    assert "".join(chunk.choices[0].text for chunk in chunks) == by_text.choices[0].text
    assert len(chunks) == 5


def test_echo_with_logprobs(client: openai.OpenAI, text: Text) -> None:
    """As lm-eval scores texts: the prompt's tokens and one more, in order."""
    prompts = [text.encode("The lantern hangs above"), text.encode("A carpenter sets")]
    answer = client.completions.create(
        model="tiny", prompt=prompts, echo=True, logprobs=2, max_tokens=1, temperature=0, seed=1
    )
    for choice, ids in zip(answer.choices, prompts, strict=True):
        found = choice.logprobs
        assert found is not None
        assert found.token_logprobs is not None and found.top_logprobs is not None
        assert found.tokens is not None and found.text_offset is not None
        lists = (found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset)
        assert {len(each) for each in lists} == {len(ids) + 1}
        assert found.token_logprobs[0] is None
        assert all(value is not None and value < 0 for value in found.token_logprobs[1:])
        assert found.tokens[:-1] == [text.token_text(i) for i in ids]
        assert choice.text.startswith(text.decode(ids))
        for logprob, top in zip(found.token_logprobs[1:], found.top_logprobs[1:], strict=True):
            assert logprob <= max(top.values())
    # Scoring token by token gives the same numbers as scoring the whole.
    ids = prompts[0]
    whole = answer.choices[0].logprobs
    assert whole is not None and whole.token_logprobs is not None
    step = client.completions.create(
        model="tiny", prompt=ids[:-1], logprobs=20, max_tokens=1, temperature=0
    )
    assert step.choices[0].logprobs is not None and step.choices[0].logprobs.top_logprobs
    known = step.choices[0].logprobs.top_logprobs[0]
    last = text.token_text(ids[-1])
    if last in known:
        assert known[last] == pytest.approx(whole.token_logprobs[len(ids) - 1], rel=1e-4)


def test_stop_texts(client: openai.OpenAI) -> None:
    settings: Any = {"model": "tiny", "prompt": "The", "max_tokens": 30, "temperature": 0}
    settings["extra_body"] = {"ignore_eos": True}
    whole = client.completions.create(**settings).choices[0].text
    stop = whole[10:13]
    choice = client.completions.create(**settings, stop=[stop]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == whole[: whole.index(stop)]


def test_json_schema(client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.create(
            model="tiny",
            messages=HI,
            max_tokens=300,
            seed=seed,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA},
            },
        )
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(answer.choices[0].message.content or ""), SCHEMA)


def test_regex_and_choice(client: openai.OpenAI) -> None:
    for extra, allowed in (
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "[ab]{2}"}}, {"aa", "ab", "ba", "bb"}),
    ):
        answer = client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=20, extra_body=extra
        )
        assert answer.choices[0].message.content in allowed


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_forced_tools(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    settings: Any = {"model": "tiny", "messages": HI, "tools": TOOLS, "tool_choice": choice}
    settings |= {"max_tokens": 500, "seed": 3, "parallel_tool_calls": False}
    calls: list[tuple[str, str]] = []
    if stream:
        reason = None
        for chunk in client.chat.completions.create(**settings, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or []:
                assert delta.function is not None
                if delta.function.name:
                    assert delta.id and delta.index == len(calls)
                    calls.append((delta.function.name, ""))
                name, arguments = calls[delta.index]
                calls[delta.index] = (name, arguments + (delta.function.arguments or ""))
            reason = chunk.choices[0].finish_reason
    else:
        answer = client.chat.completions.create(**settings)
        reason = answer.choices[0].finish_reason
        for call in answer.choices[0].message.tool_calls or []:
            assert call.type == "function"
            calls.append((call.function.name, call.function.arguments))
    assert reason == "tool_calls"
    [(name, arguments)] = calls
    if choice != "required":
        assert name == "get_weather"
    jsonschema.validate(json.loads(arguments), SCHEMA if name == "get_weather" else TIME_SCHEMA)


def test_tools_offered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HI, tools=TOOLS, max_tokens=10, tool_choice="auto"
    )
    assert answer.choices[0].finish_reason in ("length", "stop", "tool_calls")


def test_errors(client: openai.OpenAI, raw: httpx.Client) -> None:
    def fails(kind: type[openai.APIStatusError], **fields: Any) -> Any:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**{"model": "tiny", "messages": HI, **fields})
        return caught.value

    assert fails(openai.NotFoundError, model="other").code == "model_not_found"
    error = fails(openai.BadRequestError, temperature=-1)
    assert error.param == "temperature" and "-1" in error.message
    error = fails(openai.BadRequestError, extra_body={"max_tokens": "ten"})
    assert error.param == "max_tokens" and "ten" in error.message
    long = [{"role": "user", "content": "lantern " * 2 * CONTEXT}]
    assert fails(openai.BadRequestError, messages=long).code == "context_length_exceeded"
    assert fails(openai.BadRequestError, max_tokens=10**6).code == "context_length_exceeded"
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    assert fails(openai.BadRequestError, response_format=bad).code == "invalid_structure"
    assert fails(openai.BadRequestError, extra_body={"guided_regex": "(["}).status_code == 400
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert "reads text only" in fails(openai.BadRequestError, messages=image).message
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="x")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt="a", suffix="b")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt="a", best_of=3)
    assert raw.post("/v1/completions", content=b"{").status_code == 400


def test_cancel_while_streaming(client: openai.OpenAI, tiny_server: RunningServer) -> None:
    before = tiny_server.wait_idle()["inlay_generated_tokens_total"]
    stream = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=ENDLESS, stream=True, extra_body={"ignore_eos": True}
    )
    for _ in range(5):
        next(stream)
    stream.close()
    after = tiny_server.wait_idle(timeout_s=60)
    assert after["inlay_generated_tokens_total"] - before < 0.5 * ENDLESS


def test_cancel_of_a_whole_answer(client: openai.OpenAI, tiny_server: RunningServer) -> None:
    before = tiny_server.wait_idle()["inlay_generated_tokens_total"]
    hurried = client.with_options(timeout=0.15)
    with pytest.raises(openai.APITimeoutError):
        hurried.chat.completions.create(
            model="tiny", messages=HI, max_tokens=ENDLESS // 3, n=3, extra_body={"ignore_eos": True}
        )
    after = tiny_server.wait_idle(timeout_s=60)
    assert after["inlay_generated_tokens_total"] - before < 0.5 * ENDLESS


def test_other_routes(raw: httpx.Client, text: Text) -> None:
    assert raw.get("/health").status_code == 200
    ids = raw.post("/tokenize", json={"prompt": "Grüße 🙂"}).json()["tokens"]
    assert raw.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "Grüße 🙂"}
    assert raw.post("/flush_cache").status_code == 200
    body = {"text": "The", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    answer = raw.post("/generate", json=body).json()
    assert answer["meta_info"]["completion_tokens"] == 4
    assert raw.get("/server_info").json()["internal_states"]
    assert "vllm:num_requests_running" in raw.get("/metrics").text
