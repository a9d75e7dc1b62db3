"""What the store has of a prompt, and what policies make of it."""

import pytest

from inlay.cluster.policies import make_policy
from inlay.cluster.store_index import StoreIndex
from inlay.core.block_hash import ROOT, chain, store_key
from tests.unit.cluster.clusters import PAGE_TOKENS, load, matches, request, state_of

DIGESTS = chain(b"key", range(64 * PAGE_TOKENS), PAGE_TOKENS, ROOT)
KEYS = [store_key(digest).encode() for digest in DIGESTS]


def test_keys_that_come_and_go() -> None:
    index = StoreIndex()
    joined = b"".join(DIGESTS)
    assert index.match(joined) == 0
    index.replace(KEYS[:8])
    assert index.match(joined) == len(index) == 8
    index.change([*((True, key) for key in KEYS[8:20]), (False, KEYS[19]), (False, b"unknown")])
    assert index.match(joined) == 19
    index.change([(False, key) for key in reversed(KEYS[4:19])])
    assert index.match(joined) == 4
    index.replace(())
    assert index.match(joined) == len(index) == 0


@pytest.mark.parametrize(
    "key",
    [b"", b"x" * 37, b"z" * 32 + b"/0of1", KEYS[0] + b"0", store_key(DIGESTS[0], 1, 2).encode()],
)
def test_other_keys_count_for_nothing(key: bytes) -> None:
    index = StoreIndex()
    index.replace([key, KEYS[0]])
    assert len(index) == 1


@pytest.mark.parametrize("name", ["kv_centric", "inlay", "local_cache_aware"])
def test_loading_is_weighed_against_computing(name: str) -> None:
    state = state_of("both", "both")
    asked = request(1000, store_blocks=60)
    # Nobody can load: the store counts for nothing.
    alone = make_policy(name).choose(asked, matches(0, 0), state, 0.0)
    assert alone.loaded_blocks == alone.reused_blocks == 0
    # One can, at a tenth of the time of computing.
    state.report(1, load(find_s=0.001, load_block_s=2e-4), 0.0)
    quick = make_policy(name).choose(asked, matches(0, 0), state, 0.0)
    assert quick.prefill == 1
    assert quick.loaded_blocks == quick.reused_blocks == 60
    assert quick.ttft_s < alone.ttft_s / 3
    # Slower than computing.
    state.report(1, load(find_s=0.001, load_block_s=0.1), 0.0)
    slow = make_policy(name).choose(asked, matches(0, 0), state, 0.0)
    assert slow.loaded_blocks == 0 and slow.ttft_s == pytest.approx(alone.ttft_s)


def test_what_an_instance_has_is_not_loaded() -> None:
    state = state_of("both", "both")
    for slot in (0, 1):
        state.report(slot, load(find_s=0.001, load_block_s=2e-4), 0.0)
    decision = make_policy("kv_centric").choose(
        request(1000, store_blocks=70), matches(40, 0), state, 0.0
    )
    assert decision.prefill == 0
    assert (decision.reused_blocks, decision.loaded_blocks) == (62, 22)  # the last token is left
