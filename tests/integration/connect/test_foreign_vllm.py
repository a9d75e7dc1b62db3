"""`inlay up` before two real vLLM servers: prefixes, salts, cancelling, and one that is killed.

They need the environment `vllm` (`--run peers`; docs/guides/foreign-engines.md) and two minutes.
"""

import contextlib
import json
import random
import time

import httpx
import pytest

from benchmarks.connect.vllm_fleet import (
    BLOCK_TOKENS,
    deployment_text,
    hit_tokens,
    kv_events,
)
from benchmarks.serving.server import gauge, wait_until_ready
from benchmarks.serving.vllm import START_TIMEOUT_S, serve_vllm
from tests.integration.connect.asking import ask, body, known_blocks, token_ids
from tests.support.deployments import running_deployment, wait_until

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

DRAWN = random.Random(11)
LONG_TOKENS = 1600  # an answer that still runs when a reader with little time has seen 20 of it


def prompt(tokens):
    return [DRAWN.randrange(3, 250) for _ in range(tokens)]


@contextlib.contextmanager
def may_be_killed(server):
    """A server's end is no failure of the test."""
    try:
        with server as running:
            yield running
    except RuntimeError as error:
        if " ended: " not in str(error):
            raise


@pytest.fixture(scope="module")
def servers(vllm_environment, vllm_model):
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(2):
            server = serve_vllm(
                vllm_environment, vllm_model, context_tokens=2048, kv_tokens=16384, streams=4,
                all_cores=True, block_tokens=BLOCK_TOKENS, kv_events=kv_events(),
            )  # fmt: skip
            started.append(stack.enter_context(may_be_killed(server)))
            wait_until_ready(started[-1], START_TIMEOUT_S)
        yield vllm_model, started


@pytest.fixture(scope="module")
def deployment(servers, tmp_path_factory):
    model, started = servers
    text = deployment_text(model, [server.url for server in started])
    with running_deployment(tmp_path_factory.mktemp("up"), text) as running:
        yield running


def test_prefixes_go_where_they_are(servers, deployment):
    _, started = servers
    shared = [prompt(500) for _ in range(6)]
    before = sum(map(hit_tokens, started))
    blocks = known_blocks(deployment)
    for one in shared:
        ask(deployment.url, one)
    stored = sum((len(one) + 8 - 1) // BLOCK_TOKENS for one in shared)
    wait_until(lambda: known_blocks(deployment) == blocks + stored, 10, "all blocks are known")
    assert sum(map(hit_tokens, started)) == before
    for turn in range(3):
        for one in shared:
            asked = one + prompt(40)
            answer = ask(deployment.url, asked)
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == 500 // BLOCK_TOKENS * BLOCK_TOKENS, turn
    expected = 3 * len(shared) * (500 // BLOCK_TOKENS * BLOCK_TOKENS)
    assert sum(map(hit_tokens, started)) - before == expected


def test_tokens_are_those_of_the_engine(servers, deployment):
    _, started = servers
    for asked in (prompt(20), prompt(333)):
        direct = ask(started[0].url, asked, 24)
        assert token_ids(ask(deployment.url, asked, 24)) == token_ids(direct)
        assert ask(deployment.url, asked, 24)["choices"][0]["text"] == direct["choices"][0]["text"]


def test_salts_part_tenants(servers, deployment):
    _, started = servers
    asked = prompt(320)
    before = sum(map(hit_tokens, started))
    for salt in ("salt", "pepper"):
        ask(deployment.url, asked, cache_salt=salt)
    assert sum(map(hit_tokens, started)) == before
    time.sleep(1)
    ask(deployment.url, asked, cache_salt="pepper")
    assert sum(map(hit_tokens, started)) - before == 319 // BLOCK_TOKENS * BLOCK_TOKENS


def test_logprobs_choices_and_grammars(deployment):
    asked = prompt(50)
    answer = ask(deployment.url, asked, 4, logprobs=2)
    logprobs = answer["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 4
    assert all(logprobs["top_logprobs"])  # two tokens may have the same text
    two = ask(deployment.url, asked, 6, n=2, temperature=1, seed=5)
    assert len({tuple(choice["token_ids"]) for choice in two["choices"]}) == 2
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    made = ask(deployment.url, asked, 60, response_format=form, ignore_eos=False)
    assert made["choices"][0]["text"].lstrip().startswith("{")


def test_what_the_engine_refuses(deployment):
    answer = httpx.post(
        f"{deployment.url}/v1/completions", json=body(prompt(2040), 100), timeout=30
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def running(started):
    return sum(gauge(server, "vllm:num_requests_running") for server in started)


def test_a_client_that_leaves(servers, deployment):
    _, started = servers
    asked = body(prompt(50), 1900, stream=True)
    with httpx.stream("POST", f"{deployment.url}/v1/completions", json=asked, timeout=60) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        for _ in range(5):
            next(lines)
        assert running(started) == 1
    wait_until(lambda: running(started) == 0, 10, "the engine has ended the request")


def test_one_is_killed(servers, deployment):
    """Last: an engine goes in the middle of an answer, which the other one ends."""
    _, started = servers
    asked = prompt(200)
    expected = token_ids(ask(started[0].url, asked, LONG_TOKENS))
    got, killed = [], None
    with httpx.stream(
        "POST",
        f"{deployment.url}/v1/completions",
        json=body(asked, LONG_TOKENS, stream=True),
        timeout=120,
    ) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                got += choice["token_ids"]
            if killed is None and len(got) > 20:
                (killed,) = [s for s in started if gauge(s, "vllm:num_requests_running")]
                for process in killed.processes():
                    process.kill()
    assert len(got) == LONG_TOKENS
    # By another batch or another cache, bfloat16 may choose otherwise between two equal tokens.
    assert got[:20] == expected[:20]
    for _ in range(4):
        assert len(token_ids(ask(deployment.url, prompt(100)))) == 8
    states = {name: one.state for name, one in deployment.processes().items()}
    assert sorted(states[name] for name in ("e0", "e1")) == ["ready", "starting"]
