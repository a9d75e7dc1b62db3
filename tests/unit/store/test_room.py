"""Room of a store: where it comes from when objects have many sizes, and that it is given back."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inlay.core.errors import ArgumentError
from inlay.store import Contribution, PutOptions, Store, _backend

EMBEDDED = """
import sys
from inlay.store import Store
store = Store.embedded(memory="4MiB")
store.put("key", b"value")
print(store.node, flush=True)
sys.stdin.read()
"""
DIRECTORY = Path(f"/dev/shm/inlay-{os.geteuid()}/store")


def test_a_large_object_finds_room_between_small_ones_that_are_used() -> None:
    draw = random.Random(5)
    with Store.embedded(memory="16MiB", timeout_s=10) as store:
        small = [f"small {n}" for n in range(2000)]
        for begin in range(0, len(small), 50):
            some = small[begin : begin + 50]
            store.put_many(some, [b"s" * draw.choice((2000, 9000)) for _ in some])
            store.get_many(some)
        for n in range(200):
            size = draw.choice((150_000, 600_000))
            assert store.put(f"large {n}", b"l" * size).stored
            store.get_many([draw.choice(small) for _ in range(50)])
        assert store.get("large 199") == b"l" * size


def test_what_a_killed_store_left_is_deleted_by_the_next_one() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", EMBEDDED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    name = process.stdout.readline().strip()
    assert (DIRECTORY / name).is_dir()
    with Store.embedded(memory="4MiB"):
        assert len(list((DIRECTORY / name).iterdir())) == 3  # its owner lives
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with Store.embedded(memory="4MiB") as store:
        assert not (DIRECTORY / name).exists()
        own = DIRECTORY / str(store.node)
        assert own.is_dir()
    assert not own.exists()


def test_a_name_that_is_none_makes_no_directory() -> None:
    link = _backend.local_link(_backend.LocalMaster(1, []), "default")
    before = set(DIRECTORY.parent.iterdir())
    for name in ("../stray", ""):
        with pytest.raises(ArgumentError, match="node: must have 1..127 letters"):
            Store(link, None, Contribution(memory="4MiB", name=name))
    assert set(DIRECTORY.parent.iterdir()) == before


def test_what_a_node_keeps_is_not_deleted_by_others() -> None:
    name = f"kept-{os.getpid()}"
    link = _backend.local_link(_backend.LocalMaster(1, []), "default")
    with Store(link, None, Contribution(memory="4MiB", name=name, keep=True)) as store:
        store.put("key", b"value", PutOptions(if_exists="replace"))
    with Store.embedded(memory="4MiB"):
        pass
    assert (DIRECTORY / name).is_dir()
    link = _backend.local_link(_backend.LocalMaster(2, [name]), "default")
    with Store(link, None, Contribution(memory="4MiB", name=name, keep=False)) as store:
        assert store.adopted_objects == 1 and store.get("key") == b"value"
    assert not (DIRECTORY / name).exists()
