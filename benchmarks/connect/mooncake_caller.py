"""A program written for Mooncake's Python API, which `mooncake_api` asks for calls.

    python -m benchmarks.connect.mooncake_caller own|other|client|engine [FOLDER]

The same for both sides: it knows the standard library, NumPy and `mooncake` alone. With Mooncake's
own package it runs in that one's environment, with Inlay in its place under `python -m
inlay.connect.mooncake`. FOLDER is one of packages that has torch, for an environment without it.

A question is `WHAT VALUE_BYTES BATCH CALLS`, WHAT the name of a method. Values lie in an arena that
is registered, which calls walk through; reads walk through objects of that size that the store has.
"""

import ctypes
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("GLOG_minloglevel", "2")
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")

from mooncake.engine import TransferEngine  # type: ignore[import-not-found]
from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]

from benchmarks.store.peer_mooncake import NOT_FOUND, free_port, started
from benchmarks.transfer.calls import ARENA_BYTES, Walk, claim_stdout, serve, timed

SEGMENT_BYTES = 1 << 30
BUFFER_BYTES = 512 << 20  # what Mooncake's calls without buffers go through
MOST_OBJECTS = 64
TOUCH_BYTES = 16 << 20
LEASE_MS = 1000  # longer than any call takes: Mooncake gives up a read that outlasts its lease
READS = ("get", "get_buffer", "get_into", "batch_get_into", "get_tensor", "batch_is_exist")
MODULE = "benchmarks.connect.mooncake_caller"

Call = Callable[[int], object]


def expect(right: bool, what: object) -> None:
    """Raise where a call did not do what it should."""
    if not right:
        raise RuntimeError(str(what))


class StoreCalls:
    """Calls of a store, on values of one size at a time.

    Args:
        store: set up.
        address: of the arena.
    """

    def __init__(self, store: Any, address: int) -> None:
        self._store = store
        self._address = address
        self._walk = Walk()
        self._numbers = itertools.count()
        self._held = ("", 0)
        self._keys: list[str] = []
        self._made: list[str] = []

    def touch(self) -> None:
        """Have all memory of the store used once: the first use of a page is the system's time."""
        keys = self._new_keys(SEGMENT_BYTES // TOUCH_BYTES - 8)
        for key in keys:
            self._store.put_from(key, self._address, TOUCH_BYTES)
            self._store.get_into(key, self._address, TOUCH_BYTES)
        self._remove(keys)

    def ask(self, what: str, value_bytes: int, batch: int, calls: int) -> tuple[float, float]:
        """Make `calls` calls of `batch` keys each: seconds of all of them, and the median one's."""
        call = getattr(self, f"_{what}")(value_bytes, batch)
        if what in READS:
            self._hold("tensor" if "tensor" in what else "bytes", value_bytes, batch)
        times = timed(lambda thread: call, self._walk, value_bytes * batch, 1, calls)
        self._remove(self._made)
        self._made = []
        return times

    def _put(self, value_bytes: int, batch: int) -> Call:
        value = ctypes.string_at(self._address, value_bytes)

        def call(offset: int) -> None:
            expect(self._store.put(self._new_key(), value) == 0, "put")

        return call

    def _batch_put_from(self, value_bytes: int, batch: int) -> Call:
        sizes = [value_bytes] * batch

        def call(offset: int) -> None:
            keys = self._new_keys(batch)
            self._made += keys
            codes = self._store.batch_put_from(
                keys, self._places(offset, value_bytes, batch), sizes
            )
            expect(not any(codes), codes)

        return call

    def _put_tensor(self, value_bytes: int, batch: int) -> Call:
        tensor = _tensor(value_bytes)

        def call(offset: int) -> None:
            expect(self._store.put_tensor(self._new_key(), tensor) == 0, "put_tensor")

        return call

    def _get(self, value_bytes: int, batch: int) -> Call:
        def call(offset: int) -> None:
            (key,) = self._at(offset, 1)
            expect(len(self._store.get(key)) == value_bytes, key)

        return call

    def _get_buffer(self, value_bytes: int, batch: int) -> Call:
        def call(offset: int) -> None:
            (key,) = self._at(offset, 1)
            expect(self._store.get_buffer(key).size() == value_bytes, key)

        return call

    def _get_into(self, value_bytes: int, batch: int) -> Call:
        def call(offset: int) -> None:
            (key,) = self._at(offset, 1)
            size = self._store.get_into(key, self._address + offset, value_bytes)
            expect(size == value_bytes, size)

        return call

    def _batch_get_into(self, value_bytes: int, batch: int) -> Call:
        sizes = [value_bytes] * batch

        def call(offset: int) -> None:
            keys = self._at(offset, batch)
            found = self._store.batch_get_into(
                keys, self._places(offset, value_bytes, batch), sizes
            )
            expect(found == sizes, found)

        return call

    def _get_tensor(self, value_bytes: int, batch: int) -> Call:
        def call(offset: int) -> None:
            (key,) = self._at(offset, 1)
            expect(self._store.get_tensor(key).nbytes == value_bytes, key)

        return call

    def _batch_is_exist(self, value_bytes: int, batch: int) -> Call:
        wanted = [1] * batch

        def call(offset: int) -> None:
            expect(self._store.batch_is_exist(self._at(offset, batch)) == wanted, "batch_is_exist")

        return call

    def _hold(self, kind: str, value_bytes: int, batch: int) -> None:
        if self._held == (kind, value_bytes) and len(self._keys) >= batch:
            return
        self._remove(self._keys)
        count = max(batch, min(MOST_OBJECTS, ARENA_BYTES // value_bytes) // batch * batch)
        self._keys = self._new_keys(count)
        tensor = _tensor(value_bytes) if kind == "tensor" else None
        for key in self._keys:
            code = (
                self._store.put_from(key, self._address, value_bytes)
                if tensor is None
                else self._store.put_tensor(key, tensor)
            )
            expect(code == 0, f"a put of {value_bytes} bytes: {code}")
        self._held = (kind, value_bytes)

    def _at(self, offset: int, batch: int) -> list[str]:
        first = offset // (self._held[1] * batch) % (len(self._keys) // batch) * batch
        return self._keys[first : first + batch]

    def _places(self, offset: int, value_bytes: int, batch: int) -> list[int]:
        first = self._address + offset
        return list(range(first, first + batch * value_bytes, value_bytes))

    def _remove(self, keys: Sequence[str]) -> None:
        left, end = list(keys), time.monotonic() + 10 * LEASE_MS / 1000
        while left:
            codes = self._store.batch_remove(left)
            left = [
                key for key, code in zip(left, codes, strict=True) if code not in (0, NOT_FOUND)
            ]
            if left:
                expect(time.monotonic() < end, f"{left[:4]} stay under their leases")
                time.sleep(0.01)

    def _new_key(self) -> str:
        (key,) = self._new_keys(1)
        self._made.append(key)
        return key

    def _new_keys(self, count: int) -> list[str]:
        """32 characters each, as the digests of KV blocks are."""
        return [f"{number:032x}" for number in itertools.islice(self._numbers, count)]


class EngineCalls:
    """Calls of an engine to that of another process.

    Args:
        engine: initialized.
        peer: `host:port` of the other.
        here, there: addresses of both arenas.
    """

    def __init__(self, engine: Any, peer: str, here: int, there: int) -> None:
        self._engine = engine
        self._peer = peer
        self._here = here
        self._there = there
        self._walk = Walk()

    def ask(self, what: str, value_bytes: int, batch: int, calls: int) -> tuple[float, float]:
        """Make `calls` calls of `batch` blocks: seconds of all of them, and the median one's."""
        move, many = getattr(self._engine, what), what.startswith("batch_")
        sizes = [value_bytes] * batch

        def call(offset: int) -> None:
            here, there = self._here + offset, self._there + offset
            if many:
                ranges = range(0, batch * value_bytes, value_bytes)
                code = move(
                    self._peer, [here + at for at in ranges], [there + at for at in ranges], sizes
                )
            else:
                code = move(self._peer, here, there, value_bytes)
            expect(code == 0, f"{what}: {code}")

        return timed(lambda thread: call, self._walk, value_bytes * batch, 1, calls)


def _tensor(value_bytes: int) -> Any:
    import torch

    return torch.full((value_bytes // 4,), 1.5)


def set_up(master: str, segment_bytes: int, buffer_bytes: int) -> Any:
    """A store that contributes so much."""
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, buffer_bytes, "tcp", "", master)
    expect(code == 0, f"setup: {code}")
    return store


def start_engine(fill: int) -> tuple[Any, Any]:
    """An engine and its arena."""
    import numpy as np

    engine, arena = TransferEngine(), np.full(ARENA_BYTES, fill, np.uint8)
    expect(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0, "initialize")
    expect(engine.register_memory(arena.ctypes.data, ARENA_BYTES) == 0, "register_memory")
    return engine, arena


def begin(part: str, *arguments: str) -> tuple["subprocess.Popen[str]", str]:
    """Another process of this program, and its first line. It ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, part, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def start_master() -> str:
    """A master of its own; its address."""
    port = free_port()
    started(
        port, sys.executable, "-m", "mooncake.cli", f"--rpc_port={port}",
        "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", f"--metrics_port={free_port()}",
        f"--default_kv_lease_ttl={LEASE_MS}",
    )  # fmt: skip
    return f"127.0.0.1:{port}"


def attach(master: str) -> Any:
    """A store that has its memory in a `mooncake_client`."""
    port = free_port()
    started(
        port, sys.executable, "-m", "mooncake.cli_client", f"--master_server_address={master}",
        "--host=127.0.0.1", f"--port={port}", "--protocol=tcp",
        "--metadata_server=P2PHANDSHAKE", "--global_segment_size=1GB",
    )  # fmt: skip
    time.sleep(0.5)
    store = MooncakeDistributedStore()
    code = store.setup_dummy(2 * BUFFER_BYTES, BUFFER_BYTES, f"127.0.0.1:{port}")
    expect(code == 0, f"setup_dummy: {code}")
    return store


def store_calls(memory: str, kept: list[Any]) -> StoreCalls:
    """A master, and a store whose memory is this process's own, or another's.

    Args:
        memory: "own", "other" (a store of another process) or "client" (a `mooncake_client`).
        kept: takes what must live as long as this process.
    """
    import numpy as np

    master = start_master()
    if memory == "client":
        store = attach(master)
        address = store.alloc_from_mem_pool(ARENA_BYTES)
        ctypes.memset(address, 1, ARENA_BYTES)
    else:
        if memory == "other":
            kept.append(begin("hold", master))
        store = set_up(master, SEGMENT_BYTES if memory == "own" else 0, BUFFER_BYTES)
        arena = np.full(ARENA_BYTES, 1, np.uint8)
        kept.append(arena)
        address = arena.ctypes.data
    expect(store.register_buffer(address, ARENA_BYTES) == 0, "register_buffer")
    expect(store.put("first", b"value") == 0 and store.get("first") == b"value", "first")
    calls = StoreCalls(store, address)
    calls.touch()
    return calls


def engine_calls(kept: list[Any]) -> EngineCalls:
    """An engine, and that of another process, after both ways were tried."""
    process, line = begin("target")
    peer, there = line.split()
    engine, arena = start_engine(1)
    here = arena.ctypes.data
    expect(engine.transfer_sync_read(peer, here, int(there), ARENA_BYTES) == 0, "the first read")
    expect(bool((arena == 7).all()), "bytes are not as they were")
    expect(engine.transfer_sync_write(peer, here, int(there), ARENA_BYTES) == 0, "the first write")
    kept += [process, arena]
    return EngineCalls(engine, peer, here, int(there))


def main(answers: int) -> None:
    """Be one of the parts."""
    part, *arguments = sys.argv[1:]
    kept: list[Any] = []
    if part == "hold":
        kept.append(set_up(arguments[0], SEGMENT_BYTES, 64 << 20))
        os.write(answers, b"ready\n")
    elif part == "target":
        engine, arena = start_engine(7)
        kept += [engine, arena]
        os.write(answers, f"127.0.0.1:{engine.get_rpc_port()} {arena.ctypes.data}\n".encode())
    else:
        sys.path += arguments
        calls = engine_calls(kept) if part == "engine" else store_calls(part, kept)
        serve(answers, calls.ask)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(claim_stdout())
