"""Rates and latencies between two transfer engines: what `inlay bench transfer` measures.

The target offers one segment; the initiator moves blocks between it and memory of its own, or the
pages of a long prompt. Knows no command line and prints nothing.
"""

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from inlay.core.errors import ConfigError, PeerUnreachableError
from inlay.core.units import format_bytes
from inlay.transfer import (
    Access,
    Op,
    Ranges,
    RemoteSegment,
    Segment,
    Transfer,
    TransferEngine,
)

SEGMENT = "bench"
START_S = 30
DEADLINE_S = 60.0

# One long prompt of a model with 61 layers: 32 pages of two kinds in each.
KV_LAYERS, KV_PAGES, KV_POOL_PAGES = 61, 32, 48
KV_PIECE_BYTES = (128 << 10, 16 << 10)
KV_POOL_BYTES = KV_LAYERS * KV_POOL_PAGES * sum(KV_PIECE_BYTES)


@dataclass(frozen=True, kw_only=True)
class TransferBenchConfig:
    """What is measured.

    Attributes:
        workload: blocks, or kv: in one call 61 layers x 32 pages x (128 KiB + 16 KiB), on random
            pages of a pool.
        ops: read, write.
        block_bytes: sizes of blocks, each a point.
        batch: blocks per call.
        threads: threads that call at the same time.
        seconds: how long a point is measured, at least; every thread makes two calls or more.
        seed: of the places of pages.
    """

    workload: str = "blocks"
    ops: Sequence[str] = ("read", "write")
    block_bytes: Sequence[int] = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
    batch: int = 1
    threads: int = 1
    seconds: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.workload not in ("blocks", "kv"):
            raise ConfigError(f"workload must be blocks or kv, got {self.workload}")
        if unknown := set(self.ops) - {"read", "write"}:
            raise ConfigError(f"ops must be read, write or both, got {sorted(unknown)}")
        if not self.block_bytes or min(self.block_bytes) < 1:
            raise ConfigError(f"block sizes must be at least 1, got {list(self.block_bytes)}")
        for name, value, most in (("batch", self.batch, 65536), ("threads", self.threads, 256)):
            if not 1 <= value <= most:
                raise ConfigError(f"{name} must be in 1..{most}, got {value}")
        if not 0 < self.seconds <= 3600:
            raise ConfigError(f"seconds must be above 0 and at most 3600, got {self.seconds}")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured point; a call moves `batch` blocks, or all pages of the prompt.

    Attributes:
        gbs: bytes of all threads over the time from their start to the last one's end, 10^9 B/s.
        p50_us, p90_us, p99_us, max_us: of calls.
    """

    op: str
    workload: str
    block_bytes: int
    batch: int
    threads: int
    calls: int
    seconds: float
    gbs: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float


def offer(engine: TransferEngine, size: int) -> Segment:
    """The target's segment."""
    return engine.allocate(size, name=SEGMENT, remote=Access.WRITE)


@contextmanager
def own_target(size: int, transports: Sequence[str] | None = None) -> Iterator[str]:
    """A target in a process of its own on this host; gives its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_target, args=(theirs, size, transports), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(START_S):
            raise PeerUnreachableError(f"the target did not start within {START_S} s")
        try:
            yield ours.recv()
        except EOFError:
            raise PeerUnreachableError("the target ended before it listened") from None
    finally:
        ours.close()  # which ends it
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def _target(connection: Connection, size: int, transports: Sequence[str] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to both; the initiator ends us
    with TransferEngine(transports=transports) as engine:
        segment = offer(engine, size)
        connection.send(engine.address)
        connection.poll(None)  # until the other end is closed
        del segment


class TransferBench:
    """An initiator beside the target at `address`; its memory is as large as the target's.

    Raises:
        ConfigError: the segment is too small for what is asked.
        PeerUnreachableError, SegmentNotFoundError: no target there.
    """

    def __init__(self, engine: TransferEngine, address: str, config: TransferBenchConfig) -> None:
        self._engine = engine
        self._config = config
        self._remote: RemoteSegment = engine.connect(address)[SEGMENT]
        size = self._remote.size
        largest = max(config.block_bytes) * config.batch
        needed = (KV_POOL_BYTES if config.workload == "kv" else largest) * config.threads
        if needed > size:
            raise ConfigError(
                f"the target offers {format_bytes(size)}, this needs {format_bytes(needed)}: give "
                "the target more --memory, or take smaller blocks, batches or fewer threads"
            )
        self._local = engine.allocate(size, remote=Access.NONE)
        self._stopped = threading.Event()

    @property
    def memory_bytes(self) -> int:
        """Of the target's segment."""
        return self._remote.size

    def run(self) -> Iterator[Point]:
        """Measure point after point. Raises what a transfer raised.

        Interrupted, it lets running calls a second to end, then closes the engine.
        """
        kv = self._config.workload == "kv"
        sizes = [sum(KV_PIECE_BYTES)] if kv else self._config.block_bytes
        for name in self._config.ops:
            for block_bytes in sizes:
                yield self._point(Op[name.upper()], block_bytes)

    def _point(self, op: Op, block_bytes: int) -> Point:
        config = self._config
        taken: list[list[float]] = [[] for _ in range(config.threads)]
        moved = [0] * config.threads
        starts: list[float] = []
        ends: list[float] = []
        failed: list[BaseException] = []
        over = [threading.Event() for _ in range(config.threads)]
        ready = threading.Barrier(config.threads, action=lambda: starts.append(time.perf_counter()))

        def work(thread: int) -> None:
            try:
                kv = config.workload == "kv"
                call = self._kv(op, thread) if kv else self._blocks(op, block_bytes, thread)
                call()
                ready.wait()
                before, end = starts[0], starts[0] + config.seconds
                while (before < end or len(taken[thread]) < 2) and not self._stopped.is_set():
                    moved[thread] += call()
                    after = time.perf_counter()
                    taken[thread].append(after - before)
                    before = after
                ends.append(before)
            except BaseException as error:
                failed.append(error)
                self._stopped.set()
                ready.abort()
            finally:
                over[thread].set()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(config.threads)]
        try:
            for thread in threads:
                thread.start()  # which waits, so Ctrl-C may come here, too
            for one in over:
                # Not by joining: a join that Ctrl-C ends takes its thread for dead (bpo-45274).
                while not one.wait(0.1):  # without an end Ctrl-C would not come through
                    pass
        except BaseException:
            self._stopped.set()
            ready.abort()  # some may wait for those that were not started
            started = [over[n] for n, thread in enumerate(threads) if thread.ident is not None]
            for one in started:
                one.wait(1)
            self._engine.close()  # which ends calls that still wait
            for one in started:
                one.wait()
            raise
        if failed:
            broken = [e for e in failed if not isinstance(e, threading.BrokenBarrierError)]
            raise (broken or failed)[0]
        times_us = np.concatenate(taken) * 1e6
        seconds = max(ends) - starts[0]
        p50, p90, p99 = np.percentile(times_us, [50, 90, 99])
        return Point(
            op=op.name.lower(),
            workload=config.workload,
            block_bytes=block_bytes,
            batch=config.batch if config.workload == "blocks" else KV_LAYERS * KV_PAGES,
            threads=config.threads,
            calls=len(times_us),
            seconds=seconds,
            gbs=sum(moved) / seconds / 1e9,
            p50_us=float(p50),
            p90_us=float(p90),
            p99_us=float(p99),
            max_us=float(times_us.max()),
        )

    def _blocks(self, op: Op, block_bytes: int, thread: int) -> Callable[[], int]:
        """A call that moves a batch of blocks and gives its bytes; it walks through the memory."""
        span = self._remote.size // self._config.threads
        step = block_bytes * self._config.batch
        at = 0

        def call() -> int:
            nonlocal at
            first = thread * span + at
            at = at + step if at + 2 * step <= span else 0
            places = range(first, first + step, block_bytes)
            self._move(
                [
                    Transfer(
                        op, self._local[o : o + block_bytes], self._remote[o : o + block_bytes]
                    )
                    for o in places
                ]
            )
            return step

        return call

    def _kv(self, op: Op, thread: int) -> Callable[[], int]:
        """A call that moves a prompt's pages between random places of both pools."""
        random = np.random.default_rng([self._config.seed, thread])
        base = thread * (self._remote.size // self._config.threads)
        lengths = np.tile(np.repeat(KV_PIECE_BYTES, KV_PAGES), KV_LAYERS).astype(np.int64)
        places = [base + kv_places(random) for _ in range(8)]

        def call() -> int:
            here, there = places[0], places[1]
            places.append(places.pop(0))
            self._move([Ranges(op, self._local, self._remote, here, there, lengths)])
            return int(lengths.sum())

        return call

    def _move(self, transfers: "list[Transfer] | list[Ranges]") -> None:
        self._engine.submit(transfers, deadline_s=DEADLINE_S).wait()


def kv_places(random: np.random.Generator) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Offsets of a prompt's pieces in a pool: layer by layer, all pages of a kind after another."""
    pages = random.permutation(KV_POOL_PAGES)[:KV_PAGES]
    layer_bytes = KV_POOL_PAGES * sum(KV_PIECE_BYTES)
    wide, narrow = KV_PIECE_BYTES
    one = np.concatenate([pages * wide, KV_POOL_PAGES * wide + pages * narrow])
    places: np.ndarray[Any, np.dtype[np.int64]]
    places = (np.arange(KV_LAYERS)[:, None] * layer_bytes + one).reshape(-1).astype(np.int64)
    return places
