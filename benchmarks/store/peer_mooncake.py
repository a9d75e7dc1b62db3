"""Mooncake's store between processes of one machine; asked for calls by `drivers.py`.

Runs in the environment `mooncake` (package mooncake-transfer-engine-non-cuda, Debian libibverbs1):

    python -m benchmarks.store.peer_mooncake tcp|shm

`tcp`: another process owns the memory, protocol tcp. `shm`: its `mooncake_client` owns it, and this
process reaches it by shared memory.
"""

import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.store.calls import answer
from benchmarks.transfer.calls import ARENA_BYTES, claim_stdout

os.environ.setdefault("GLOG_minloglevel", "2")
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")

SEGMENT_BYTES = 2 << 30
BUFFER_BYTES = 512 << 20  # what `get` and batches of it go through
LEASE_MS = 200
START_S = 30.0
NOT_FOUND = -704


class MooncakeClient:
    """Values lie in memory that is registered with it."""

    def __init__(self, store: Any, address: int) -> None:
        self._store = store
        self._address = address

    def put(self, keys: Sequence[str], offsets: Sequence[int], value_bytes: int) -> None:
        """New ones."""
        if len(keys) == 1:
            codes = [self._store.put_from(keys[0], self._address + offsets[0], value_bytes)]
        else:
            codes = self._store.batch_put_from(
                list(keys), self._places(offsets), [value_bytes] * len(keys)
            )
        if any(codes):
            raise RuntimeError(f"put: codes {sorted(set(codes))}")

    def get(self, keys: Sequence[str], value_bytes: int) -> None:
        """As bytes."""
        values = [self._store.get(keys[0])] if len(keys) == 1 else self._store.get_batch(list(keys))
        assert all(len(value) == value_bytes for value in values)

    def get_into(self, keys: Sequence[str], offsets: Sequence[int], value_bytes: int) -> None:
        """Into the arena."""
        if len(keys) == 1:
            sizes = [self._store.get_into(keys[0], self._address + offsets[0], value_bytes)]
        else:
            sizes = self._store.batch_get_into(
                list(keys), self._places(offsets), [value_bytes] * len(keys)
            )
        if any(size != value_bytes for size in sizes):
            raise RuntimeError(f"get_into: sizes {sorted(set(sizes))}")

    def exists(self, keys: Sequence[str]) -> None:
        """All of them are there."""
        if len(keys) == 1:
            assert self._store.is_exist(keys[0]) == 1
        else:
            assert all(code == 1 for code in self._store.batch_is_exist(list(keys)))

    def remove(self, keys: Sequence[str]) -> None:
        """Whether they are there or not."""
        for key in keys:
            end = time.monotonic() + 10 * LEASE_MS / 1000
            while self._store.remove(key) not in (0, NOT_FOUND):
                if time.monotonic() > end:
                    raise RuntimeError(f"{key} stays under its lease")
                time.sleep(0.01)

    def _places(self, offsets: Sequence[int]) -> list[int]:
        return [self._address + offset for offset in offsets]


def free_port() -> int:
    """One that nobody listens at now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def started(port: int, *command: str) -> None:
    """Start a program and wait until it listens."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.01)
    raise RuntimeError(f"{command[0]} does not listen")


def connect(master: str, segment_bytes: int, buffer_bytes: int) -> Any:
    """A client of its store, which contributes so much."""
    from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]

    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, buffer_bytes, "tcp", "", master)
    assert code == 0, f"setup: code {code}"
    return store


def own(master: str, answers: int) -> None:
    """The process that contributes memory: it ends when its standard input does."""
    store = connect(master, SEGMENT_BYTES, 64 << 20)
    os.write(answers, b"ready\n")
    sys.stdin.read()
    del store
    os._exit(0)


def over_tcp(master: str) -> MooncakeClient:
    """Beside an owner in another process."""
    owner = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "own", master],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
    store = connect(master, 0, BUFFER_BYTES)
    arena = (ctypes.c_uint8 * ARENA_BYTES)()
    ctypes.memset(arena, 1, ARENA_BYTES)
    address = ctypes.addressof(arena)
    assert store.register_buffer(address, ARENA_BYTES) == 0
    client = MooncakeClient(store, address)
    client.arena = arena  # type: ignore[attr-defined]
    client.owner = owner  # type: ignore[attr-defined]
    return client


def by_shared_memory(master: str, programs: Path) -> MooncakeClient:
    """Attached to a client process of its own kind."""
    from mooncake.store import MooncakeDistributedStore

    port = free_port()
    started(
        port,
        str(programs / "mooncake_client"),
        f"--master_server_address={master}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--protocol=tcp",
        "--metadata_server=P2PHANDSHAKE",
        "--global_segment_size=2GB",
    )
    time.sleep(0.5)
    store = MooncakeDistributedStore()
    code = store.setup_dummy(2 << 30, BUFFER_BYTES, f"127.0.0.1:{port}")
    assert code == 0, f"setup_dummy: code {code}"
    address = store.alloc_from_mem_pool(ARENA_BYTES)
    ctypes.memset(address, 1, ARENA_BYTES)
    assert store.register_buffer(address, ARENA_BYTES) == 0
    return MooncakeClient(store, address)


def main(answers: int) -> None:
    """Start a master and what belongs to it, check one value, answer."""
    import mooncake  # type: ignore[import-not-found]

    if sys.argv[1] == "own":
        own(sys.argv[2], answers)
    programs, port = Path(mooncake.__file__).parent, free_port()
    master = f"127.0.0.1:{port}"
    started(
        port,
        str(programs / "mooncake_master"),
        f"--rpc_port={port}",
        "--rpc_address=127.0.0.1",
        "--metrics_host=127.0.0.1",
        f"--metrics_port={free_port()}",
        f"--default_kv_lease_ttl={LEASE_MS}",
    )
    client = over_tcp(master) if sys.argv[1] == "tcp" else by_shared_memory(master, programs)
    client.put(["first"], [0], 4096)
    client.get_into(["first"], [4096], 4096)
    answer(answers, client)


if __name__ == "__main__":
    main(claim_stdout())
