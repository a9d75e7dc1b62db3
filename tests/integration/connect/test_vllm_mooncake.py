"""vLLM's own connector for Mooncake's store, over Inlay's store: two real servers.

They need the environment `vllm` (`--run peers`; docs/guides/mooncake.md) and two minutes to start.
"""

import json
import random
import time

import pytest

from benchmarks.connect.vllm_pair import BLOCK_TOKENS, external_tokens, pair
from benchmarks.store.instances import ask
from inlay.connect.mooncake import MooncakeDistributedStore
from tests.integration.connect.conftest import PROGRAM
from tests.support.store import StoreProcess

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

CONFIG = {
    "kv_connector": "MooncakeStoreConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
PROMPT_TOKENS = 1000
WHOLE_TOKENS = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
WAIT_S = 60
DRAWN = random.Random(11)


def prompt(tokens=PROMPT_TOKENS):
    return [DRAWN.randrange(3, 250) for _ in range(tokens)]


@pytest.fixture(scope="module")
def own_master(tmp_path_factory):
    process = StoreProcess(
        tmp_path_factory.mktemp("master"), "--port=0", "--metrics_port=0",
        module=(f"{PROGRAM}.master",),
    )  # fmt: skip
    yield process
    process.close()


@pytest.fixture(scope="module")
def address(own_master):
    return own_master.wait_for(r"master at (127.0.0.1:\d+)")[1]


@pytest.fixture(scope="module")
def servers(vllm_environment, vllm_model, tmp_path_factory, address):
    folder = tmp_path_factory.mktemp("mooncake")
    settings = {
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": address,
        "protocol": "tcp",
        "global_segment_size": "64MB",
        "local_buffer_size": "64MB",
    }
    (folder / "mooncake.json").write_text(json.dumps(settings))
    file = folder / "mooncake.json"
    with pair(vllm_environment, vllm_model, CONFIG, context_tokens=2048, mooncake=file) as both:
        yield both


@pytest.fixture(scope="module")
def store(address):
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 0, 0, "tcp", "", address) == 0
    yield store
    store.close()


def wait_until_stored(store, blocks):
    """Return when there are so many blocks, each of which is a key."""
    deadline = time.monotonic() + WAIT_S
    keys = []
    while time.monotonic() < deadline:
        keys, _ = store.administration().keys("")
        if store.batch_is_exist([key.decode() for key in keys]).count(1) >= blocks:
            return
        time.sleep(0.05)
    raise AssertionError(f"{len(keys)} of {blocks} blocks came to the store in {WAIT_S} s")


def test_a_prefix_is_shared(servers, store):
    """The second's text is that of the first with its own cache: both compute the same pieces."""
    first, second = servers
    asked = prompt()
    ask(first, asked, 12)
    wait_until_stored(store, WHOLE_TOKENS // BLOCK_TOKENS)
    again = ask(first, asked, 12)
    assert again.cached_tokens == WHOLE_TOKENS
    before = external_tokens(second)
    other = ask(second, asked, 12)
    assert other.token_ids == again.token_ids
    assert external_tokens(second) - before == WHOLE_TOKENS
    before = external_tokens(second)
    ask(second, asked, 12, cache_salt="another tenant")
    assert external_tokens(second) == before


def test_without_the_store(servers, own_master):
    """Last: the master is killed, and both servers go on."""
    own_master.kill()
    for server in servers:
        assert len(ask(server, prompt(), 8).token_ids) == 8
