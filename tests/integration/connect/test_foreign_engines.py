"""A dispatcher and proxies before engines that speak by HTTP alone, as other systems' do.

`inlay serve` stands for them: it has vLLM's and SGLang's interfaces. It publishes no KV events, so
a publisher of the test does.
"""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from inlay.models.source import resolve_model
from tests.support.cluster import RunningDispatcher, ended
from tests.support.deployments import wait_until
from tests.support.directories import free_port
from tests.support.foreign import RunningProxy
from tests.support.kv_publisher import KvPublisher, removed, stored
from tests.support.server import RunningServer
from tests.support.tiny_models import make_tiny_model

pytestmark = pytest.mark.timeout(180)

KINDS = ("vllm", "sglang")
PROMPT = list(range(40, 90))
Start = Callable[..., Any]


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve_model(None).directory


def serve(**options: Any) -> RunningServer:
    return RunningServer(None, engine={"threads": 1, "device": "cpu"}, **options)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[RunningServer]]:
    started = [serve(), serve()]
    try:
        yield [server.wait_ready() for server in started]
    finally:
        for server in started:
            server.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts proxies and dispatchers that end with the test."""
    with ExitStack() as stack:

        def make(made: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            process = made(*arguments, tmp_path, **options)
            stack.enter_context(ended(process))
            return process

        yield make


def dispatcher(start: Start, *proxies: RunningProxy, **options: Any) -> RunningDispatcher:
    fields = {"policy": "kv_centric", "serve": {"page": False, "served_model_name": "m"}}
    members = [proxy.member for proxy in proxies]
    return start(RunningDispatcher, members, **fields, **options)  # type: ignore[no-any-return]


def body(**fields: Any) -> dict[str, Any]:
    least = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "return_token_ids": True}
    return {**least, "ignore_eos": True, **fields}


def ask(url: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/completions", json=body(**fields), timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def said(answer: dict[str, Any]) -> Any:
    """What an answer has, without names and counts."""
    keys = ("text", "token_ids", "finish_reason", "stop_reason", "logprobs")
    return [{key: choice.get(key) for key in keys} for choice in answer["choices"]]


def metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_engine(
    start: Start, engines: list[RunningServer], model: Path, kind: str
) -> None:
    url = engines[0].url
    front = dispatcher(
        start, start(RunningProxy, "a", model=model, url=url, kind=kind).wait_ready()
    )
    for fields in (
        {},
        {"temperature": 0.9, "seed": 11},
        {"temperature": 0.9, "seed": 11, "top_p": 0.7, "top_k": 20, "min_p": 0.01},
        {"logprobs": 3, "max_tokens": 6},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"ignore_eos": False, "min_tokens": 3},
        {"max_tokens": 1},
    ):
        assert said(ask(front.url, **fields)) == said(ask(url, **fields)), fields
    text = ask(url)["choices"][0]["text"]
    stop = text[len(text) // 2 :][:3]
    found = ask(front.url, stop=[stop])["choices"][0]
    assert (found["finish_reason"], stop in found["text"]) == ("stop", False)
    two = ask(front.url, n=2, temperature=0.9, seed=5)
    assert len({choice["text"] for choice in two["choices"]}) == 2
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    chosen = ask(front.url, guided_choice=["lantern", "sea"], ignore_eos=False)
    assert chosen["choices"][0]["text"] in ("lantern", "sea")


@pytest.mark.parametrize("kind", KINDS)
def test_events_say_who_has_a_prompt(
    start: Start, engines: list[RunningServer], model: Path, kind: str
) -> None:
    draw = random.Random(kind)
    with ExitStack() as stack:
        publishers = [KvPublisher(), KvPublisher()]
        for publisher in publishers:
            stack.callback(publisher.close)
        proxies = [
            start(
                RunningProxy,
                name,
                model=model,
                page_tokens=16,
                url=engine.url,
                kind=kind,
                kv_events=publisher.events,
                kv_replay=publisher.replay,
            ).wait_ready()
            for name, engine, publisher in zip("ab", engines, publishers, strict=True)
        ]
        for publisher in publishers:
            publisher.wait_subscribed()
        front = dispatcher(start, *proxies)

        def blocks() -> list[int]:
            status = httpx.get(f"{front.url}/cluster/status", timeout=30).json()
            return [one["num_blocks"] for one in status["instances"]]

        wait_until(lambda: len(blocks()) == 2, 20, "both instances are there")
        for turn in range(4):
            prompt = [draw.randrange(40, 400) for _ in range(200)]
            has = turn % 2
            publishers[has].publish(stored(prompt, 16))
            wait_until(lambda n=has: blocks()[n] == 12, 20, "its blocks are known")
            before = [metric(one.url, "inlay_prompt_tokens_total") for one in engines]
            answer = ask(front.url, prompt=prompt + [45], max_tokens=2)
            after = [metric(one.url, "inlay_prompt_tokens_total") for one in engines]
            assert after[has] - before[has] == 201
            assert after[1 - has] == before[1 - has]
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 192
            publishers[has].publish(removed(prompt, 16))
            wait_until(lambda n=has: blocks()[n] == 0, 20, "its blocks are gone")


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_leaves(
    start: Start, engines: list[RunningServer], model: Path, kind: str
) -> None:
    url = engines[0].url
    front = dispatcher(
        start, start(RunningProxy, "a", model=model, url=url, kind=kind).wait_ready()
    )
    running = partial(metric, url, "vllm:num_requests_running")
    generated = partial(metric, url, "inlay_generated_tokens_total")
    asked, before = body(stream=True, max_tokens=4000), generated()
    with httpx.stream("POST", f"{front.url}/v1/completions", json=asked, timeout=60) as reply:
        lines = reply.iter_lines()
        next(line for line in lines if line.startswith("data: {"))
    wait_until(lambda: running() == 0, 20, "the engine has ended the request")
    assert 0 < generated() - before < 4000


def test_an_engine_that_starts_later(start: Start, model: Path) -> None:
    port = free_port()
    proxy = start(RunningProxy, "a", model=model, url=f"http://127.0.0.1:{port}", kind="vllm")
    wait_until(lambda: "waits for the engine" in proxy.log.read_text(), 20, "it says so")
    server = serve(port=port)
    try:
        server.wait_ready()
        front = dispatcher(start, proxy.wait_ready())
        assert ask(front.url, max_tokens=2)["choices"][0]["token_ids"]
    finally:
        server.kill()


def test_engines_that_are_not_what_they_should_be(
    start: Start, engines: list[RunningServer], model: Path, tmp_path: Path
) -> None:
    url = engines[0].url
    other = make_tiny_model(tmp_path / "other", "qwen3")
    for options, words in (
        ({"model": other, "kind": "vllm"}, "whose tokenizer is not that of"),
        ({"model": model, "kind": "vllm", "served_model": "x"}, "and not 'x'"),
        ({"model": tmp_path, "kind": "vllm"}, "no config.json"),
    ):
        line = start(RunningProxy, "a", url=url, **options).line()
        assert line["state"] == "failed"
        assert words in line["message"]


def test_what_an_engine_refuses(start: Start, engines: list[RunningServer], model: Path) -> None:
    front = dispatcher(
        start,
        start(RunningProxy, "a", model=model, url=engines[0].url, kind="sglang").wait_ready(),
    )
    for fields, words in (
        ({"guided_grammar": "start: /a+/"}, "grammars of the kind lark"),
        ({"echo": True, "logprobs": 1, "max_tokens": 1}, "log probabilities of the prompt"),
    ):
        answer = httpx.post(f"{front.url}/v1/completions", json=body(**fields), timeout=30)
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]


def test_an_engine_that_is_killed(start: Start, engines: list[RunningServer], model: Path) -> None:
    """Last: the other one ends the answer, and the proxy ends with its engine."""
    servers = dict(zip("ab", engines, strict=True))
    proxies = {
        name: start(RunningProxy, name, model=model, url=server.url, kind=kind).wait_ready()
        for (name, server), kind in zip(servers.items(), KINDS, strict=True)
    }
    front = dispatcher(start, *proxies.values())
    fields = {"max_tokens": 1000}
    expected = ask(servers["a"].url, **fields)["choices"][0]["text"]
    text, victim = "", ""
    with httpx.stream(
        "POST", f"{front.url}/v1/completions", json=body(stream=True, **fields), timeout=60
    ) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                text += "".join(one["text"] for one in event["choices"])
            if not victim and len(text) > 40:
                status = httpx.get(f"{front.url}/health", timeout=30).json()
                names = [one["name"] for one in status["instances"] if one.get("requests")]
                victim = names[0] if names else "a"  # it may have ended already
                servers[victim].kill()
    assert text == expected
    line = proxies[victim].line()
    assert (line["state"], line["code"]) == ("failed", "engine_died")
    assert proxies[victim].wait() == 3
    assert ask(front.url, **fields)["choices"][0]["text"] == expected
