"""What a put says of an object's worth decides what goes when room is short."""

import asyncio
import time
from pathlib import Path

import pytest

from inlay.core.errors import ArgumentError
from inlay.store import Disk, PutOptions, Store, aio

SIZE = 60_000
BLOCKS = [f"block {n}" for n in range(20)]
PARENTS = [None, *BLOCKS[:-1]]


def leading(store: Store, keys: list[str], tier: str | None = None) -> int:
    """How many of a chain are there, its first ones, and nothing behind them."""
    there = store.exists_many(keys)
    if tier is not None:
        there = [one and store.stat(key).tier == tier for key, one in zip(keys, there, strict=True)]
    count = [*there, False].index(False)
    assert not any(there[count:]), f"{there} of a chain"
    return count


def fill(store: Store, count: int) -> None:
    for n in range(count):
        store.put(f"other {n}", b"o" * SIZE)


def put_with_parents(store: Store) -> None:
    store.put_many(BLOCKS, [b"b" * SIZE] * len(BLOCKS), parents=PARENTS)


def put_one_by_one(store: Store) -> None:
    for key, parent in zip(BLOCKS, PARENTS, strict=True):
        store.put(key, b"b" * SIZE, PutOptions(parent=parent))


def put_parts(store: Store) -> None:
    store.put_parts_many(BLOCKS, [[b"b" * SIZE]] * len(BLOCKS), parents=PARENTS)


def put_awaited(store: Store) -> None:
    asyncio.run(aio.put_many(store, BLOCKS, [b"b" * SIZE] * len(BLOCKS), parents=PARENTS))


@pytest.mark.parametrize("put", [put_with_parents, put_one_by_one, put_parts, put_awaited])
def test_a_chain_goes_from_its_end(put) -> None:
    with Store.embedded(memory="4MiB") as store:
        put(store)
        counts = set()
        for n in range(70):
            store.put(f"other {n}", b"o" * SIZE)
            counts.add(leading(store, BLOCKS))
        assert {0, len(BLOCKS)} < counts, "it goes block by block"
        assert store.get_or_none("other 69") == b"o" * SIZE


def test_what_is_dear_stays_longer() -> None:
    with Store.embedded(memory="4MiB") as store:
        store.put("dear", b"d" * SIZE, PutOptions(recompute_us=1_000_000))
        store.put("cheap", b"c" * SIZE, PutOptions(recompute_us=100))
        store.put("unknown", b"u" * SIZE)
        fill(store, 100)
        assert store.exists_many(["dear", "cheap", "unknown"]) == [True, False, False]


def test_what_comes_back_from_a_disk_is_worth_what_it_was(tmp_path: Path) -> None:
    keys = BLOCKS[:10]
    with Store.embedded(memory="4MiB", disk=Disk(tmp_path, "64MiB")) as store:
        store.put("dear", b"d" * SIZE, PutOptions(recompute_us=1 << 31, durability="disk"))
        options = PutOptions(recompute_us=1000, durability="disk")
        store.put_many(keys, [b"b" * SIZE] * len(keys), options, parents=PARENTS[: len(keys)])
    with Store.embedded(memory="4MiB", disk=Disk(tmp_path, "64MiB")) as store:
        assert {store.stat(key).tier for key in ("dear", *keys)} == {"disk"}
        for key in ("dear", *keys):
            assert store.get(key) == (b"d" if key == "dear" else b"b") * SIZE
        assert {store.stat(key).tier for key in ("dear", *keys)} == {"memory"}
        time.sleep(0.35)  # what somebody has just waited for is not evicted for 0.25 s
        counts = set()
        for n in range(200):
            store.put(f"other {n}", b"o" * SIZE, PutOptions(recompute_us=1 << 22))
            counts.add(leading(store, keys, "memory"))
        assert {0, len(keys)} < counts
        assert store.stat("dear").tier == "memory"


def test_hints_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"recompute_us must be in 0..2\^32-1, got -1"):
        PutOptions(recompute_us=-1)
    with Store.embedded(memory="4MiB") as store:
        with pytest.raises(ArgumentError, match="parents: must be as many as keys, got 1 for 2"):
            store.put_many(["a", "b"], [b"", b""], parents=["c"])
        with pytest.raises(ArgumentError, match=r"key: must have 1..1024 bytes, got 1025"):
            store.put("a", b"", PutOptions(parent="p" * 1025))
        with pytest.raises(ArgumentError, match="key: must be str or bytes, got int"):
            store.put_many(["a"], [b""], parents=[1])
        assert not store.exists("a")
        store.put("a", b"", PutOptions(parent="never put"))
        assert store.get("a") == b""
