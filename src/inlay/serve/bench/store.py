"""Rates and latencies of a store: what `inlay bench store` measures.

One client puts objects, reads them and asks whether they are there, in batches. Knows no command
line and prints nothing.
"""

import itertools
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inlay.core.errors import ConfigError, StoreUnavailable
from inlay.core.units import format_bytes
from inlay.store import Store

OPS = ("put", "get", "exists")
START_S = 30.0


@dataclass(frozen=True, kw_only=True)
class StoreBenchConfig:
    """What is measured.

    Attributes:
        ops: put (new keys; what a point put is removed at its end), get (into memory of the
            caller), exists (every second key is there).
        value_bytes: sizes of values, each a point; `exists` has none.
        batches: keys per call, each a point.
        seconds: how long a point is measured, at least; and two calls or more.
        objects: how many objects reads go through, at most; fewer where they would not fit.
        room_bytes: what objects of one point may take together.
    """

    ops: Sequence[str] = OPS
    value_bytes: Sequence[int] = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
    batches: Sequence[int] = (1, 32)
    seconds: float = 1.0
    objects: int = 256
    room_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if unknown := set(self.ops) - set(OPS):
            raise ConfigError(f"ops must be some of {', '.join(OPS)}, got {sorted(unknown)}")
        if not self.value_bytes or min(self.value_bytes) < 1:
            raise ConfigError(f"sizes must be at least 1, got {list(self.value_bytes)}")
        if not self.batches or not 1 <= min(self.batches) <= max(self.batches) <= 65536:
            raise ConfigError(f"batches must be in 1..65536, got {list(self.batches)}")
        if not 0 < self.seconds <= 3600:
            raise ConfigError(f"seconds must be above 0 and at most 3600, got {self.seconds}")
        if not 1 <= self.objects <= 1 << 20:
            raise ConfigError(f"objects must be in 1..{1 << 20}, got {self.objects}")
        if max(self.value_bytes) > self.room_bytes:
            raise ConfigError(
                f"a value of {format_bytes(max(self.value_bytes))} does not fit into the "
                f"{format_bytes(self.room_bytes)} that one point may take: give more --room"
            )


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured point; a call has `batch` keys.

    Attributes:
        value_bytes: 0 for `exists`.
        keys_per_s, gbs: over the time from the first call to the end of the last; 10^9 B/s of
            values.
        p50_us, p90_us, p99_us, max_us: of calls.
    """

    op: str
    value_bytes: int
    batch: int
    calls: int
    seconds: float
    keys_per_s: float
    gbs: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True, kw_only=True)
class OwnStore:
    """A store that was started.

    Attributes:
        master: its address.
        token: what clients must hold.
        master_pid: of its process.
    """

    master: str
    token: bytes
    master_pid: int


@contextmanager
def own_store(memory_bytes: int) -> Iterator[OwnStore]:
    """A master and a node in processes of their own."""
    token = secrets.token_bytes(32)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inlay-bench-")))
        file = folder / "token"
        file.touch(mode=0o600)
        file.write_bytes(token)
        state = ["--state", str(folder / "epoch"), "--token-file", str(file)]
        listen = ["--listen", "127.0.0.1:0", "--admin", "none"]
        started = _running("master", *listen, *state, says="master at ")
        master, master_pid = stack.enter_context(started)
        name = f"bench-{os.getpid()}"
        node = ["--master", master, "--name", name, "--memory", str(memory_bytes)]
        node += ["--token-file", str(file), "--forget"]
        stack.enter_context(_running("node", *node, says=f"node {name}: "))
        yield OwnStore(master=master, token=token, master_pid=master_pid)


@contextmanager
def _running(*args: str, says: str) -> Iterator[tuple[str, int]]:
    """A command of `inlay store`; gives the word behind what it says at its start, and its pid."""
    process = subprocess.Popen(
        [sys.executable, "-m", "inlay", "store", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "INLAY_LOG": "warning"},
        start_new_session=True,  # Ctrl-C is for the client, which ends them in order
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            if line.startswith(says):
                yield line.removeprefix(says).split(",")[0].split()[0], process.pid
                return
            said.append(line)
        raise StoreUnavailable(f"the store's {args[0]} did not start: {' '.join(said).strip()}")
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class StoreBench:
    """A client of a store. What it put is removed when a point ends."""

    def __init__(self, store: Store, config: StoreBenchConfig) -> None:
        self._store = store
        self._config = config
        self._prefix = f"bench-{secrets.token_hex(4)}/"
        self._numbers = itertools.count()

    def run(self) -> Iterator[Point]:
        """Measure point after point. Raises what the store raised."""
        for op in self._config.ops:
            for batch in self._config.batches:
                for size in (0,) if op == "exists" else self._config.value_bytes:
                    if size * batch > self._config.room_bytes:
                        continue
                    try:
                        yield self._point(op, size, batch)
                    finally:
                        self._store.remove_prefix(self._prefix)

    def _point(self, op: str, size: int, batch: int) -> Point:
        call = {"put": self._put, "get": self._get, "exists": self._exists}[op](size, batch)
        call()
        taken: list[float] = []
        start = before = time.perf_counter()
        while before < start + self._config.seconds or len(taken) < 2:
            call()
            after = time.perf_counter()
            taken.append(after - before)
            before = after
        seconds = before - start
        p50, p90, p99 = np.percentile(np.array(taken) * 1e6, [50, 90, 99])
        keys = batch * len(taken)
        return Point(
            op=op,
            value_bytes=size,
            batch=batch,
            calls=len(taken),
            seconds=seconds,
            keys_per_s=keys / seconds,
            gbs=keys * size / seconds / 1e9,
            p50_us=float(p50),
            p90_us=float(p90),
            p99_us=float(p99),
            max_us=max(taken) * 1e6,
        )

    def _new_keys(self, count: int) -> list[str]:
        return [f"{self._prefix}{number:012}" for number in itertools.islice(self._numbers, count)]

    def _put(self, size: int, batch: int) -> Callable[[], None]:
        """Puts new keys; the oldest go where they would take more than their room."""
        values = [np.full(size, n, np.uint8) for n in range(min(batch, 4))]
        values = [values[n % len(values)] for n in range(batch)]
        most = max(2, self._config.room_bytes // (size * batch))
        held: list[list[str]] = []

        def call() -> None:
            keys = self._new_keys(batch)
            self._store.put_many(keys, values)
            held.append(keys)
            if len(held) >= most:
                self._store.remove_many(held.pop(0))

        return call

    def _get(self, size: int, batch: int) -> Callable[[], None]:
        """Reads objects in turn into memory of the caller."""
        count = max(batch, min(self._config.objects, self._config.room_bytes // size))
        keys = self._fill(count, size)
        buffers = [np.empty(size, np.uint8) for _ in range(batch)]
        turns = itertools.cycle(_batches(keys, batch))

        def call() -> None:
            self._store.get_into_many(next(turns), buffers)

        return call

    def _exists(self, size: int, batch: int) -> Callable[[], None]:
        """Asks for keys of which every second is there."""
        there = self._fill(max(batch, self._config.objects), 64)
        keys = [key for pair in zip(there, self._new_keys(len(there)), strict=True) for key in pair]
        turns = itertools.cycle(_batches(keys, batch))

        def call() -> None:
            self._store.exists_many(next(turns))

        return call

    def _fill(self, count: int, size: int) -> list[str]:
        keys = self._new_keys(count)
        value = np.zeros(size, np.uint8)
        step = max(1, (16 << 20) // size)
        for at in range(0, count, step):
            some = keys[at : at + step]
            self._store.put_many(some, [value] * len(some))
        return keys


def _batches(keys: list[str], batch: int) -> list[list[str]]:
    """Whole batches only."""
    return [keys[at : at + batch] for at in range(0, len(keys) - batch + 1, batch)]
