"""A store in one process: what each call does, and what it refuses."""

import ctypes
import gc
import mmap
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from inlay.core.errors import (
    ArgumentError,
    ConfigError,
    KeyNotFound,
    ObjectDamaged,
    ObjectExists,
    ResourceError,
    StoreClosed,
    StoreFull,
)
from inlay.store import Contribution, PutOptions, PutResult, Store


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.embedded(memory="64MiB") as made:
        yield made


SIZES = [0, 1, 63, 64, 4096, 65536, 262143, 262144, 5_000_000]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_put_is_got(store: Store, size: int) -> None:
    value = secrets.token_bytes(size)
    assert store.put("key", value).stored
    assert store.get("key") == value
    assert store.get_or_none("key") == value
    buffer = bytearray(size + 5)
    assert store.get_into("key", buffer, 5) == size
    assert buffer[5:] == value
    with store.view("key", verify=True) as memory:
        assert memory == value and memory.readonly
    assert store.exists("key")
    found = store.stat("key")
    assert found.size_bytes == size and not found.mutable
    assert found.replicas == ((store.node, "memory"),)


def test_a_miss_is_no_empty_value(store: Store) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b"" and store.get_or_none("none") is None
    assert store.get_many(["empty", "none"]) == [b"", None]
    for call in (store.get, store.view, store.stat, store.remove):
        with pytest.raises(KeyNotFound, match="'none'"):
            call("none")
    with pytest.raises(KeyNotFound):
        store.get_into("none", bytearray(4))
    assert store.exists_many(["empty", "none"]) == [True, False]


def test_if_exists(store: Store) -> None:
    first = store.put("k", b"one")
    kept = store.put("k", b"two")
    assert first.stored and not kept.stored and kept.generation == first.generation
    assert store.get("k") == b"one"
    with pytest.raises(ObjectExists, match="'k'"):
        store.put("k", b"two", PutOptions(if_exists="error"))
    replaced = store.upsert("k", b"three")
    assert replaced.stored and replaced.generation > first.generation
    assert store.get("k") == b"three" and store.stat("k").mutable
    assert store.upsert("k", b"").generation > replaced.generation
    assert store.get("k") == b""


def test_remove(store: Store) -> None:
    store.put_many(["a/1", "a/2", "b/1"], [b"1", b"2", b"3"])
    store.remove("a/1")
    assert store.get_many(["a/1", "a/2", "b/1"]) == [None, b"2", b"3"]
    assert store.remove_many(["a/1", "a/2"]) == [False, True]
    store.put_many(["a/3", "a/4"], [b"x", b"y"], PutOptions(group="g"))
    store.put("a/5", b"z", PutOptions(group="h"))
    assert store.remove_group("g") == 2 and store.remove_group("none") == 0
    assert store.remove_prefix("a/") == 1
    assert store.exists_many(["a/3", "a/4", "a/5", "b/1"]) == [False, False, False, True]
    assert store.put("a/1", b"again").stored and store.get("a/1") == b"again"


def test_many(store: Store) -> None:
    keys = [f"key-{i}" for i in range(10_000)]
    values = [str(i).encode() * (i % 50) for i in range(10_000)]
    assert all(result.stored for result in store.put_many(keys, values))
    assert store.get_many(keys) == values
    assert all(store.exists_many(keys))
    buffers = [bytearray(len(value)) for value in values[:100]]
    assert store.get_into_many([*keys[:100], "none"], [*buffers, bytearray()]) == [
        *map(len, values[:100]),
        None,
    ]
    assert buffers == values[:100]
    upserted = store.upsert_many(keys[:10], [b"new"] * 10)
    assert all(result.stored for result in upserted)
    assert store.get_many(keys[:11]) == [b"new"] * 10 + [values[10]]


def test_one_that_fails_of_many(store: Store) -> None:
    values = {f"k{i}": secrets.token_bytes(3000) for i in range(4)}
    store.put_many(list(values), list(values.values()))
    (file,) = Path(f"/dev/shm/inlay-{os.geteuid()}/store/{store.node}").glob("*.segment")
    with file.open("r+b") as segment:
        with mmap.mmap(segment.fileno(), 0) as memory:
            memory[memory.find(values["k1"]) + 100] ^= 1
    buffers = [bytearray(size) for size in (3000, 3000, 2999, 3000, 3000)]
    results = store.get_into_many(["k0", "k1", "k2", "k3", "none"], buffers)
    assert results[0] == results[3] == 3000 and results[4] is None
    assert isinstance(results[1], ObjectDamaged) and "k1" in str(results[1])
    assert isinstance(results[2], ArgumentError) and "k2" in str(results[2])
    assert (buffers[0], buffers[3]) == (values["k0"], values["k3"])
    of_all = store.get_many(list(values))
    assert isinstance(of_all[1], ObjectDamaged)
    assert of_all[0] == values["k0"] and of_all[2] == values["k2"]
    parts = store.get_parts_many(
        ["k0", "k3"], [[buffers[0]], [buffers[0]]], [[(1, 3000)], [(0, 3000)]]
    )
    assert isinstance(parts[0], ArgumentError) and parts[1] == 3000
    for read in (store.get, store.get_or_none):
        with pytest.raises(ObjectDamaged, match="k1"):
            read("k1")


def test_parts(store: Store) -> None:
    parts = [secrets.token_bytes(n) for n in (10, 0, 100_000, 300_000)]
    whole = b"".join(parts)
    store.put_parts("p", parts)
    assert store.get("p") == whole
    buffers = [bytearray(n) for n in (200_000, 200_010)]
    assert store.get_parts("p", buffers) == len(whole)
    assert b"".join(buffers) == whole
    one, other = bytearray(7), bytearray(1000)
    assert store.get_parts("p", [one, other], [(3, 7), (123_456, 1000)]) == len(whole)
    assert one == whole[3:10] and other == whole[123_456:124_456]
    assert store.get_parts_many(["none", "p"], [[], [one]], [[], [(0, 7)]]) == [None, len(whole)]
    with pytest.raises(ArgumentError, match="beyond"):
        store.get_parts("p", [one], [(len(whole) - 1, 7)])
    with pytest.raises(ArgumentError, match="400010 bytes"):
        store.get_parts("p", [one])


def test_arrays_and_tensors(store: Store) -> None:
    array = np.arange(1000, dtype=np.float32)
    tensor = torch.arange(1000, dtype=torch.bfloat16)
    store.put("array", array)
    store.put("tensor", tensor)
    target = torch.zeros(1000, dtype=torch.bfloat16)
    assert store.get_into("tensor", target) == 2000
    assert torch.equal(target, tensor)
    with store.view("array") as memory:
        assert np.array_equal(np.frombuffer(memory, dtype=np.float32), array)
    with pytest.raises(ArgumentError, match="contiguous"):
        store.put("strided", np.zeros((4, 4))[:, ::2])


def test_a_view_keeps_its_bytes(store: Store) -> None:
    value = secrets.token_bytes(300_000)
    store.put("k", value)
    with store.view("k") as memory:
        array = np.frombuffer(memory, dtype=np.uint8)
        store.upsert("k", bytes(300_000))
        store.remove("k")
        for i in range(400):  # more than the store holds
            store.put(f"fill-{i}", bytes(300_000))
        assert bytes(memory) == value
    assert bytes(array) == value  # what was made of it keeps it, too
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    del array
    gc.collect()


def test_full(store: Store) -> None:
    pinned = PutOptions(hard_pin=True)
    value = bytes(4 << 20)
    with pytest.raises(StoreFull, match="contribute more memory"):
        for i in range(32):
            store.put(f"pinned-{i}", value, pinned, timeout_s=1)
    assert store.get("pinned-0") == value
    store.remove("pinned-0")
    assert store.put("other", value).stored


@pytest.mark.parametrize("key", ["", b"", "x" * 1025, b"x" * 1025, "ü" * 513])
def test_bad_keys(store: Store, key: str | bytes) -> None:
    for call in (
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.exists(key),
        lambda: store.view(key),
        lambda: store.remove(key),
    ):
        with pytest.raises(ArgumentError, match=r"key: must have 1\.\.1024 bytes"):
            call()


def test_bad_arguments(store: Store) -> None:
    store.put("k", b"12345")
    with pytest.raises(ArgumentError, match="5 bytes, the buffer 4"):
        store.get_into("k", bytearray(4))
    with pytest.raises(ArgumentError, match="writable"):
        store.get_into("k", bytes(5))
    with pytest.raises(ArgumentError, match="offset"):
        store.get_into("k", bytearray(5), 6)
    with pytest.raises(ArgumentError, match="list of keys"):
        store.get_many("k")
    with pytest.raises(ArgumentError, match="as many as keys"):
        store.put_many(["a"], [b"", b""])
    with pytest.raises(ArgumentError, match="str or bytes"):
        store.get(5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"replicas must be in 1\.\.8, got 9"):
        PutOptions(replicas=9)
    with pytest.raises(ArgumentError, match="if_exists"):
        PutOptions(if_exists="maybe")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="timeout_s"):
        store.get("k", timeout_s=0)
    with pytest.raises(ArgumentError, match="larger than any segment"):
        store.put("large", bytes(65 << 20))
    with pytest.raises(ConfigError):
        Store.embedded(memory="many")
    with pytest.raises(ResourceError, match="room for"):
        Store.embedded(memory="100TiB")
    with pytest.raises(ConfigError):
        _ = Contribution(memory=0).memory_bytes


def test_unknown_preferred_node(store: Store) -> None:
    anywhere = PutOptions(preferred_node="nobody")
    assert store.put("a", b"1", anywhere).stored
    there = PutOptions(preferred_node="nobody", require_preferred=True)
    with pytest.raises(ArgumentError, match="no node 'nobody'"):
        store.put("b", b"1", there)


def test_more_replicas_than_nodes(store: Store) -> None:
    assert store.put("some", b"1", PutOptions(replicas=3)).stored
    assert len(store.stat("some").replicas) == 1
    with pytest.raises(Exception, match="3 replicas on different nodes"):
        store.put("all", b"1", PutOptions(replicas=3, all_replicas=True))


def test_closed() -> None:
    store = Store.embedded(memory="4MiB")
    files = [file for file in _files() if f"embedded-{os.getpid()}" in str(file)]
    assert files
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.get("k")
    assert not any(file.exists() for file in files)


def test_damage_is_no_value(store: Store) -> None:
    value = secrets.token_bytes(100_000)
    store.put("k", value)
    (segment,) = [
        file for file in _files() if str(store.node) in str(file) and file.suffix == ".segment"
    ]
    with segment.open("r+b") as file:
        at = file.read().index(value)
        file.seek(at + 5000)
        file.write(bytes([value[5000] ^ 1]))
    with pytest.raises(ObjectDamaged, match="'k'"):
        store.get("k")
    with pytest.raises(ObjectDamaged):
        store.view("k", verify=True)
    store.remove("k")
    store.put("k", value)
    assert store.get("k") == value


def test_a_forked_child_opens_its_own(store: Store) -> None:
    store.put("k", b"1")
    pid = os.fork()
    if pid == 0:
        try:
            store.get("k")
        except StoreClosed:
            with Store.embedded(memory="4MiB") as own:
                own.put("k", b"2")
                os._exit(0 if own.get("k") == b"2" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.get("k") == b"1"


def _files() -> list[Path]:
    return list(Path(f"/dev/shm/inlay-{os.getuid()}/store").glob("*/*"))


def test_a_put_tells_of_each_key_whether_it_has_room(store: Store) -> None:
    pinned = PutOptions(hard_pin=True)
    part, keys = bytes(10 << 20), [f"k{number}" for number in range(8)]
    told = store.put_parts_each(keys, [[part]] * 8, pinned, room_s=0.5, timeout_s=30)
    stored = [isinstance(one, PutResult) for one in told]
    assert stored == sorted(stored, reverse=True) and 4 <= sum(stored) <= 6  # of 64 MiB
    assert all(isinstance(one, StoreFull) for one in told[sum(stored) :])
    assert store.exists_many(keys) == stored
    figures = store.figures()
    assert (figures.stored, figures.kept) == (sum(stored), 0)

    parts = [[bytes(100 << 20)], [b"small"], [part], [b"also ", b"small"], [b"other"]]
    names = ["larger than the store", "s1", "no room", "s2", "k0"]
    large, one, full, two, kept = store.put_parts_each(
        names, parts, pinned, room_s=0.5, timeout_s=30
    )
    assert isinstance(large, ArgumentError) and isinstance(full, StoreFull)
    assert "larger than any segment" in str(large) and "contribute more memory" in str(full)
    assert isinstance(one, PutResult) and isinstance(two, PutResult) and one.stored and two.stored
    assert isinstance(kept, PutResult) and not kept.stored and store.get("s2") == b"also small"
    refused = store.put_parts_each(["k0"], [[b"x"]], PutOptions(if_exists="error"))
    assert isinstance(refused[0], ObjectExists)


def test_a_put_of_some_waits_for_room_once(store: Store) -> None:
    pinned = PutOptions(hard_pin=True)
    parts = [[bytes(40 << 20)], [bytes(30 << 20)], [bytes(29 << 20)], [b"x"]]
    begun = time.monotonic()
    told = store.put_parts_each(["a", "b", "c", "d"], parts, pinned, room_s=0.2, timeout_s=30)
    assert time.monotonic() - begun >= 0.2  # for `b`, and not again for `c`
    assert [isinstance(one, PutResult) for one in told] == [True, False, False, True]


def test_addresses_are_looked_up(store: Store) -> None:
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 4 * page)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    memory[: 2 * page] = secrets.token_bytes(2 * page)
    store.put("pages", (address, 2 * page))
    assert store.get("pages") == memory[: 2 * page]
    assert store.get_into("pages", (address + 2 * page, 2 * page)) == 2 * page
    assert memory[2 * page :] == memory[: 2 * page]
    lib = ctypes.CDLL(None, use_errno=True)
    readable, nothing = 1, 0
    assert lib.mprotect(ctypes.c_void_p(address + page), page, readable) == 0
    store.put("read only", (address, 4 * page))
    with pytest.raises(ArgumentError, match="read-only"):
        store.get_into("pages", (address, 2 * page))
    assert lib.mprotect(ctypes.c_void_p(address + 2 * page), page, nothing) == 0
    for begin, pages in ((0, 4), (2, 1), (1, 2)):
        with pytest.raises(ArgumentError, match="not all memory"):
            store.put("gap", (address + begin * page, pages * page))
    store.put("behind it", (address + 3 * page, page))


def test_a_forked_child_looks_addresses_up_in_its_own_memory() -> None:
    script = """
import mmap, os
import numpy as np
from inlay.store import Store

def check():
    with Store.embedded(memory="16MiB") as store:
        memory = mmap.mmap(-1, 64 * mmap.PAGESIZE)
        store.put("k", (np.frombuffer(memory, np.uint8).ctypes.data, len(memory)))
        assert store.get("k") == bytes(len(memory))

check()
child = os.fork()
if not child:
    try:
        check()
    except BaseException as error:
        print(error, flush=True)
        os._exit(1)
    os._exit(0)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
