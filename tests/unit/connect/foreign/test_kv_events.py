"""Events in every form in which engines write them."""

import base64
import json
from pathlib import Path

import msgspec
import pytest

from inlay.connect.foreign.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    read_events,
)
from inlay.connect.foreign.names import BlockNames
from inlay.core.block_hash import chain
from inlay.core.errors import DataError

RECORDED = Path(__file__).with_name("vllm_events.json")
STORED = {
    "type": "BlockStored",
    "block_hashes": [2**64 - 1, 5],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
}


def batch(*events, **fields):
    return msgspec.msgpack.encode([1.5, list(events), *fields.values()])


def row(event):
    """As older releases wrote it: an array, its type first."""
    return [event["type"], *(value for key, value in event.items() if key != "type")]


@pytest.mark.parametrize("form", [dict, row])
@pytest.mark.parametrize("hashes", [[2**64 - 1, 5], [b"\xff" * 32, b"\x00" * 32]])
def test_stored(form, hashes):
    event = STORED | {"block_hashes": hashes, "parent_block_hash": hashes[1]}
    (found,) = read_events(batch(form(event)))
    expected = BlockStored(
        block_hashes=hashes, parent_block_hash=hashes[1], token_ids=[1, 2, 3, 4], block_size=2
    )
    assert isinstance(found, BlockStored)
    assert msgspec.structs.asdict(found) == msgspec.structs.asdict(expected)


def test_fields_of_later_releases():
    event = STORED | {
        "medium": "CPU",
        "lora_name": "poet",
        "extra_keys": [["poet", "pepper"], None],
        "group_idx": 1,
        "kv_cache_spec_kind": "full_attention",
        "kv_cache_spec_sliding_window": 128,
        "locality": "REMOTE",
        "ownership": "who",
        "session_id": "s",
        "lookahead_token_ids": [9],
    }
    (found,) = read_events(batch(event, rank=0))
    assert (found.medium, found.lora_name, found.extra_keys[0]) == (
        "CPU",
        "poet",
        ["poet", "pepper"],
    )
    assert (found.group_idx, found.kv_cache_spec_sliding_window, found.locality) == (
        1,
        128,
        "REMOTE",
    )


@pytest.mark.parametrize("form", [dict, row])
def test_removed_and_cleared(form):
    removed = {"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "GPU"}
    first, last = read_events(batch(form(removed), form({"type": "AllBlocksCleared"}), rank=None))
    assert isinstance(first, BlockRemoved) and isinstance(last, AllBlocksCleared)
    assert (first.block_hashes, first.medium) == ([1, 2], "GPU")


def test_types_that_are_not_known_are_left_out():
    news = {"type": "BlockTouched", "block_hashes": [1]}
    assert read_events(batch(news, ["BlockTouched", 1], STORED)) == read_events(batch(STORED))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1.5]),
        msgspec.msgpack.encode({"ts": 1}),
        batch({"type": "BlockStored"}),
        batch(STORED | {"token_ids": ["a"]}),
        batch(["BlockStored", 1]),
        batch(3),
        batch([]),
    ],
)
def test_what_is_no_events(payload):
    with pytest.raises(DataError):
        read_events(payload)


def test_recorded_from_vllm():
    """What vLLM 0.32 said of known prompts that its cache was too small for."""
    recorded = json.loads(RECORDED.read_text())
    names = BlockNames(lambda salt, adapter: f"{salt}/{adapter}".encode(), 32)
    seen: set[bytes] = set()
    for message in recorded["messages"]:
        names.apply(read_events(base64.b64decode(message)))
        seen |= set(names.digests())
    expected = [
        set(chain(f"{one['salt']}/".encode(), one["tokens"], 32)) for one in recorded["sequences"]
    ]
    assert seen == set().union(*expected)
    assert names.unnamed == 0
    assert set(names.digests()) < seen  # some were removed
    assert expected[-1] <= set(names.digests())  # the last one is there
