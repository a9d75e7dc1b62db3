"""Two real vLLM servers with the connector: shared prefixes, prefill for each other, and losses.

They need the environment `vllm` (`--run peers`; docs/guides/vllm.md) and two minutes to start.
"""

import contextlib
import random
from pathlib import Path

import psutil
import pytest

from benchmarks.connect.vllm_pair import BLOCK_TOKENS, external_tokens, hand_over, kv_transfer, pair
from benchmarks.store.instances import ask, store_master
from inlay.store.administration import Administration
from inlay.transfer.runtime_dir import shared_token
from tests.support.deployments import wait_until

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

DRAWN = random.Random(7)
# Of what tests/unit/connect/vllm/test_remote_prompt.py tries, some of each kind.
CANNOT_BE = [
    {"remote_addresses": None},
    {"remote_addresses": 5},
    {"remote_addresses": "127.0.0.1:1"},
    {"remote_addresses": [{"a": 1}]},
    {"remote_addresses": ["127.0.0.1:1"] * 1000},
    {"remote_addresses": ["no address"]},
    {"remote_block_ids": "5"},
    {"remote_block_ids": [-1] * 4},
    {"remote_block_ids": [2**60] * 4},
    {"remote_block_ids": [2**31 - 1] * 4},
    {"remote_block_ids": list(range(-1, 200_000))},
    {"remote_num_tokens": -5},
    {"remote_num_tokens": "many"},
    {"remote_num_tokens": 2**62, "remote_addresses": ["127.0.0.1:1"]},
    {"remote_request_id": ["a"]},
    {"remote_engine_id": {"no": "such"}, "tp_size": -3, "remote_addresses": []},
]


def prompt(tokens):
    return [DRAWN.randrange(3, 250) for _ in range(tokens)]


@pytest.fixture(scope="module")
def servers(vllm_environment, vllm_model):
    with store_master() as master:
        config = kv_transfer(store=master, contribute="128MiB")
        with pair(vllm_environment, vllm_model, config, context_tokens=2048) as both:
            yield *both, master


def blocks_stored(master):
    """How many blocks the store has."""
    with Administration(master, shared_token()) as administration:
        count, cursor, begun = 0, 0, False
        while cursor or not begun:
            keys, cursor = administration.keys("", cursor)
            count, begun = count + len(keys), True
        return count


def test_a_prefix_is_shared(servers):
    """The second's text is that of the first with its own cache: both compute the same pieces."""
    first, second, master = servers
    shared = prompt(1000)
    whole = 999 // BLOCK_TOKENS * BLOCK_TOKENS
    stored = blocks_stored(master)
    known = ask(first, shared, 12)
    wait_until(
        lambda: blocks_stored(master) >= stored + whole // BLOCK_TOKENS, 60, "blocks in the store"
    )
    again = ask(first, shared, 12)
    assert again.cached_tokens == whole
    before = external_tokens(second)
    assert ask(second, shared, 12).token_ids == again.token_ids
    assert external_tokens(second) - before == whole
    other = ask(second, shared, 12, cache_salt="another tenant")
    assert other.token_ids == known.token_ids  # both have computed all of it
    assert external_tokens(second) - before == whole


@pytest.mark.parametrize("tokens", [5, BLOCK_TOKENS, 700])
def test_one_computes_for_the_other(servers, tokens):
    """With the first token handed on, nothing is computed twice, or in other pieces."""
    first, second, _ = servers
    asked = prompt(tokens)
    alone = ask(second, asked, 12, cache_salt="alone")
    params, token = hand_over(first, asked, "pair")
    before = external_tokens(second)
    rest = ask(second, [*asked, token], 11, cache_salt="pair", kv_transfer_params=params)
    assert [token, *rest.token_ids] == alone.token_ids
    assert external_tokens(second) - before == tokens


def test_the_last_token_is_computed_again(servers):
    """As it is behind the whole blocks of an instance's own cache: the same pieces."""
    first, second, _ = servers
    asked = prompt(10 * BLOCK_TOKENS + 1)
    ask(second, asked, 12, cache_salt="alone")
    again = ask(second, asked, 12, cache_salt="alone")
    assert again.cached_tokens == 10 * BLOCK_TOKENS
    params = hand_over(first, asked, "pair").params
    before = external_tokens(second)
    both = ask(second, asked, 12, cache_salt="pair", kv_transfer_params=params)
    assert both.token_ids == again.token_ids
    assert external_tokens(second) - before == len(asked)


def test_another_instance_that_is_not_there(servers):
    """What is lost is computed, all of it: other salts, so that no cache and no store has any."""
    first, second, _ = servers
    asked = prompt(300)
    params = hand_over(first, asked, "x").params | {"remote_addresses": ["127.0.0.1:1"]}
    alone = ask(first, asked, 8, cache_salt="alone")
    lost = ask(second, asked, 8, cache_salt="lost", kv_transfer_params=params)
    assert lost.token_ids == alone.token_ids


def test_parameters_that_cannot_be(servers):
    """Each is answered, as if it had come without them, and the server lives on."""
    first, second, _ = servers
    asked = prompt(100)
    alone = ask(second, asked, 8, cache_salt="alone")
    good = hand_over(first, asked, "x").params
    for number, changed in enumerate(CANNOT_BE):
        params = good | changed
        answer = ask(second, asked, 8, cache_salt=f"wrong {number}", kv_transfer_params=params)
        assert answer.token_ids == alone.token_ids, changed
    assert ask(second, asked, 8, cache_salt="after").token_ids == alone.token_ids


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
