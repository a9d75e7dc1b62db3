"""Two real vLLM servers with the connector: shared prefixes, prefill for each other, and losses.

They need the environment `vllm` (`--run peers`; docs/guides/vllm.md) and two minutes to start.
"""

import contextlib
import random
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.connect.vllm_pair import BLOCK_TOKENS, external_tokens, hand_over, kv_transfer, pair
from benchmarks.store.instances import ask, store_master

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

DRAWN = random.Random(7)


def prompt(tokens):
    return [DRAWN.randrange(3, 250) for _ in range(tokens)]


@pytest.fixture(scope="module")
def servers(vllm_environment, vllm_model):
    with store_master() as master:
        config = kv_transfer(store=master, contribute="128MiB")
        with pair(vllm_environment, vllm_model, config, context_tokens=2048) as both:
            yield *both, master


def test_a_prefix_is_shared(servers):
    first, second, _ = servers
    shared = prompt(1000)
    known = ask(first, shared, 12)
    time.sleep(1)
    before = external_tokens(second)
    assert ask(second, shared, 12).token_ids == known.token_ids
    assert external_tokens(second) - before == 999 // BLOCK_TOKENS * BLOCK_TOKENS
    other = ask(second, shared, 12, cache_salt="another tenant")
    assert other.token_ids == known.token_ids
    assert external_tokens(second) - before == 999 // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.parametrize("tokens", [5, BLOCK_TOKENS, 700])
def test_one_computes_for_the_other(servers, tokens):
    first, second, _ = servers
    asked = prompt(tokens)
    alone = ask(second, asked, 12, cache_salt="alone")
    params = hand_over(first, asked, "pair").params
    before = external_tokens(second)
    both = ask(second, asked, 12, cache_salt="pair", kv_transfer_params=params)
    assert both.token_ids == alone.token_ids
    assert external_tokens(second) - before == tokens


def test_another_instance_that_is_not_there(servers):
    first, second, _ = servers
    asked = prompt(300)
    params = hand_over(first, asked, "x").params | {"remote_addresses": ["127.0.0.1:1"]}
    alone = ask(first, asked, 8)
    assert ask(second, asked, 8, kv_transfer_params=params).token_ids == alone.token_ids


def test_without_the_store(servers):
    """Last: the master is killed, and both servers go on."""
    first, second, master = servers
    port = int(master.rpartition(":")[2])
    for process in psutil.process_iter(["pid", "cmdline"]):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.info["cmdline"] and f"127.0.0.1:{port}" in process.info["cmdline"]:
                if "master" in process.info["cmdline"]:
                    process.kill()
    for _ in range(3):
        asked = prompt(400)
        assert ask(first, asked, 8).token_ids == ask(second, asked, 8).token_ids
    assert Path(f"/proc/{first.process.pid}").exists()
