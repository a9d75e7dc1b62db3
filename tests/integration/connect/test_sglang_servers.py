"""Two real SGLang servers on a CPU: prefixes in Inlay's store, and its dispatcher before them.

They need the environments `sglang` and `vllm` (`--run peers`; docs/guides/sglang.md) and a minute
to start.
"""

import contextlib
import json
import random

import httpx
import pytest

from benchmarks.connect.sglang_fleet import fleet, generate, hit_tokens
from benchmarks.connect.vllm_fleet import deployment_text
from benchmarks.serving.server import gauge
from benchmarks.serving.sglang import PAGE_TOKENS
from benchmarks.store.instances import store_master
from tests.integration.connect.asking import ask, blocks_of_each, body, known_blocks, token_ids
from tests.support.deployments import running_deployment, wait_until

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

DRAWN = random.Random(13)


def prompt(tokens):
    return [DRAWN.randrange(3, 250) for _ in range(tokens)]


@pytest.fixture(scope="module")
def master():
    with store_master() as address:
        yield address


@pytest.fixture(scope="module")
def servers(sglang_environments, vllm_model, master):
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(
                fleet(sglang_environments, vllm_model, 2, master=master, kv_tokens=16384)
            )
        finally:
            with contextlib.suppress(RuntimeError):  # the last test kills one
                stack.close()


@pytest.fixture(scope="module")
def deployment(servers, vllm_model, tmp_path_factory):
    text = deployment_text(vllm_model, [server.url for server in servers])
    for server in servers:
        httpx.post(f"{server.url}/flush_cache", timeout=30).raise_for_status()
        generate(server, prompt(160), 2)
    with running_deployment(tmp_path_factory.mktemp("up"), text) as running:
        # What was said before is said again, up to here.
        wait_until(lambda: blocks_of_each(running) == [10, 10], 60, "all before is known")
        yield running


def whole_pages(tokens):
    return tokens // PAGE_TOKENS * PAGE_TOKENS


def test_a_prefix_is_shared_through_the_store(servers):
    first, second = servers
    shared = prompt(1000)
    known = generate(first, shared, 12)
    assert not known.cached
    wait_until(
        lambda: gauge(first, "sglang:backuped_tokens_total") >= whole_pages(1000), 60, "it is put"
    )
    there = generate(second, shared, 12)
    assert there.token_ids == known.token_ids
    assert there.cached == {"storage": whole_pages(999)}
    assert generate(second, shared, 12).cached == {"device": whole_pages(999)}
    other = generate(second, shared, 12, salt="another tenant")
    assert (other.token_ids, other.cached) == (known.token_ids, {})


def test_prefixes_go_where_they_are(servers, deployment):
    shared = [prompt(500) for _ in range(6)]
    before, blocks = sum(map(hit_tokens, servers)), known_blocks(deployment)
    for one in shared:
        ask(deployment.url, one)
    stored = sum(whole_pages(len(one) + 7) // PAGE_TOKENS for one in shared)
    wait_until(lambda: known_blocks(deployment) == blocks + stored, 60, "all blocks are known")
    assert sum(map(hit_tokens, servers)) == before
    for turn in range(3):
        for one in shared:
            answer = ask(deployment.url, one + prompt(40))
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == whole_pages(500), turn
    assert sum(map(hit_tokens, servers)) - before == 3 * len(shared) * whole_pages(500)


def test_answers_are_those_of_the_engine(servers, deployment):
    for asked in (prompt(20), prompt(333)):
        known = generate(servers[0], asked, 24).token_ids
        assert token_ids(ask(deployment.url, asked, 24)) == known
    biased = ask(deployment.url, prompt(50), 4, logit_bias={"77": 100})
    assert token_ids(biased) == [77] * 4
    logprobs = ask(deployment.url, prompt(50), 4, logprobs=2)["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 4 and all(logprobs["top_logprobs"])
    two = ask(deployment.url, prompt(50), 6, n=2, temperature=1, seed=5)
    assert len({tuple(choice["token_ids"]) for choice in two["choices"]}) == 2
    refused = httpx.post(
        f"{deployment.url}/v1/completions", json=body(prompt(4090), 100), timeout=30
    )
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_salts_part_tenants(servers, deployment):
    asked, before = prompt(320), sum(map(hit_tokens, servers))
    blocks = known_blocks(deployment)
    for salt in ("salt", "pepper"):
        ask(deployment.url, asked, cache_salt=salt)
    assert sum(map(hit_tokens, servers)) == before
    wait_until(lambda: known_blocks(deployment) >= blocks + 40, 60, "both are known")
    ask(deployment.url, asked, cache_salt="pepper")
    assert sum(map(hit_tokens, servers)) - before == whole_pages(319)


def running(servers):
    return sum(gauge(server, "sglang:num_running_reqs") for server in servers)


def test_a_client_that_leaves(servers, deployment):
    asked = body(prompt(50), 3900, stream=True)
    with httpx.stream("POST", f"{deployment.url}/v1/completions", json=asked, timeout=60) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        for _ in range(5):
            next(lines)
    loads = [f"{server.url}/v1/loads" for server in servers]
    wait_until(lambda: not any(num_open(url) for url in loads), 60, "the engine has ended it")


def num_open(url):
    found = httpx.get(url, timeout=30).json()["loads"]
    return sum(one["num_running_reqs"] + one["num_waiting_reqs"] for one in found)


def test_one_is_killed(servers, deployment):
    """Last: an engine goes in the middle of an answer, which the other one ends."""
    asked = prompt(200)
    expected = generate(servers[0], asked, 1000).token_ids
    got, killed = [], None
    with httpx.stream(
        "POST",
        f"{deployment.url}/v1/completions",
        json=body(asked, 1000, stream=True),
        timeout=120,
    ) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                got += choice["token_ids"]
            if killed is None and len(got) > 20:
                status = httpx.get(f"{deployment.url}/health", timeout=30).json()
                (name,) = [one["name"] for one in status["instances"] if one.get("requests")]
                killed = servers[int(name[1:])]
                for process in killed.processes():
                    process.kill()
    assert len(got) == 1000
    assert got[:20] == expected[:20]
    for _ in range(4):
        assert len(token_ids(ask(deployment.url, prompt(100)))) == 8
    states = {name: one.state for name, one in deployment.processes().items()}
    assert sorted(states[name] for name in ("e0", "e1")) == ["ready", "starting"]
