"""`/v1/completions` on a stand-in engine, with bodies as evaluation tools and load tests send."""

from typing import Any

import pytest

from tests.unit.serve.conftest import Api
from tests.unit.serve.test_chat_api import events

COMPLETIONS = "/v1/completions"


async def test_text_prompt(api: Api) -> None:
    async with api() as (client, engine):
        answer = (await client.post(COMPLETIONS, json={"prompt": "Say"})).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "Hello there."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["logprobs"] is None
    assert engine.requests[0].params.max_tokens == 16
    assert engine.requests[0].token_ids == engine.text.encode("Say")


async def test_prompt_forms(api: Api) -> None:
    async with api() as (client, engine):
        for prompt, count in (
            (["a", "b", "c"], 3),
            ([5, 6, 7], 1),
            ([[5, 6], [7]], 2),
            ([[5, 6]], 1),
        ):
            engine.requests.clear()
            answer = (await client.post(COMPLETIONS, json={"prompt": prompt, "n": 2})).json()
            assert [choice["index"] for choice in answer["choices"]] == list(range(2 * count))
            assert len(engine.requests) == count
            tokens = sum(len(request.token_ids) for request in engine.requests)
            assert answer["usage"]["prompt_tokens"] == tokens
            assert answer["usage"]["completion_tokens"] == 2 * count * len(
                engine.text.encode("Hello there.")
            )
        assert engine.requests[0].token_ids == [5, 6]


async def test_stream_of_several_prompts(api: Api) -> None:
    body = {"prompt": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}}
    async with api() as (client, engine):
        found = events((await client.post(COMPLETIONS, json=body)).text)
    texts = {0: "", 1: ""}
    for chunk in found[:-1]:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "Hello there.", 1: "Hello there."}
    count = len(engine.text.encode("Hello there."))
    assert len(found) == 2 * count + 1
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == 2 * count


async def test_lm_eval_loglikelihood(api: Api) -> None:
    """As `lm_eval --model local-completions` asks for log likelihoods, and reads them."""
    prompts = [[10, 11, 12, 13], [20, 21]]
    body = {
        "model": "tiny",
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    async with api() as (client, engine):
        answer = (await client.post(COMPLETIONS, json=body)).json()
    for choice, prompt in zip(answer["choices"], prompts, strict=True):
        found = choice["logprobs"]
        count = len(prompt) + 1
        assert all(len(found[key]) == count for key in found)
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        # lm-eval takes everything after the context, without the one generated token.
        context = 1
        for logprob, top in zip(
            found["token_logprobs"][context:-1], found["top_logprobs"][context:-1], strict=True
        ):
            assert logprob == -2.0
            assert max(top.values()) == -1.0
        assert found["text_offset"][0] == 0
        assert choice["text"].startswith(engine.text.decode(prompt, skip_special_tokens=False))
        joined = "".join(found["tokens"])
        assert joined[: found["text_offset"][-1]] == "".join(found["tokens"][:-1])


async def test_echo_streams_the_prompt_first(api: Api) -> None:
    body = {"prompt": "Say: ", "echo": True, "stream": True, "logprobs": 2}
    async with api() as (client, engine):
        found = events((await client.post(COMPLETIONS, json=body)).text)
        plain = (await client.post(COMPLETIONS, json={**body, "stream": False})).json()
    assert found[0]["choices"][0]["text"] == "Say: "
    assert "".join(e["choices"][0]["text"] for e in found) == "Say: Hello there."
    assert plain["choices"][0]["text"] == "Say: Hello there."
    joined: dict[str, list[Any]] = {}
    for e in found:
        for key, values in e["choices"][0]["logprobs"].items():
            joined.setdefault(key, []).extend(values)
    assert joined == plain["choices"][0]["logprobs"]
    assert joined["text_offset"][len(engine.text.encode("Say: "))] == len("Say: ")


async def test_only_the_echo(api: Api) -> None:
    body = {"prompt": "Say: ", "echo": True, "max_tokens": 0, "logprobs": 0}
    async with api() as (client, _):
        answer = (await client.post(COMPLETIONS, json=body)).json()
        found = events((await client.post(COMPLETIONS, json={**body, "stream": True})).text)
    assert answer["choices"][0]["text"] == "Say: "
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert "".join(answer["choices"][0]["logprobs"]["tokens"]) == "Say: "
    assert "".join(e["choices"][0]["text"] for e in found) == "Say: "


async def test_tokens_as_ids(api: Api) -> None:
    body = {
        "prompt": [5],
        "logprobs": 1,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
    }
    async with api() as (client, engine):
        [choice] = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    ids = engine.text.encode("Hello there.")
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in ids]
    assert choice["token_ids"] == ids
    assert choice["prompt_token_ids"] == [5]


async def test_vllm_bench_serve(api: Api) -> None:
    """The body that `vllm bench serve --backend openai --ignore-eos` sends."""
    body = {
        "model": "tiny",
        "prompt": "some random words",
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    async with api() as (client, engine):
        found = events((await client.post(COMPLETIONS, json=body)).text)
    *tokens, last = found
    assert all(e["choices"] and isinstance(e["choices"][0]["text"], str) for e in tokens)
    assert last["usage"]["prompt_tokens"] == len(engine.requests[0].token_ids)
    assert last["usage"]["completion_tokens"] == len(tokens)


async def test_sglang_bench_oai(api: Api) -> None:
    """The body that `sglang.bench_serving --backend sglang-oai` (and vllm) sends."""
    body = {
        "model": "tiny",
        "prompt": "some random words",
        "best_of": 1,
        "max_tokens": 8,
        "stream": True,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    async with api() as (client, _):
        found = events((await client.post(COMPLETIONS, json=body)).text)
    assert all("text" in e["choices"][0] for e in found)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "n": 2, "best_of": 3}, "best_of"),
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": ["a"] * 20, "n": 60}, "n"),
    ],
)
async def test_refused(api: Api, fields: dict[str, Any], param: str) -> None:
    async with api() as (client, engine):
        answer = await client.post(COMPLETIONS, json=fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize("n", [65, 5000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/generate", {"text": "a"}),
    ],
)
async def test_n_is_at_most_what_the_engine_runs_together(
    api: Api, path: str, body: dict[str, Any], n: int
) -> None:
    fields = {"sampling_params": {"n": n}} if path == "/generate" else {"n": n}
    async with api() as (client, engine):
        answer = await client.post(path, json={**body, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"n is {n}: it must be in 1..64"
    assert engine.requests == []
