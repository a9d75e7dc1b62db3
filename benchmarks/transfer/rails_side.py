"""One end of transfer/rails, in a network namespace of its own; told what to do by `rails.py`.

    python -m benchmarks.transfer.rails_side target ADDRESS...
    python -m benchmarks.transfer.rails_side initiator ADDRESS...

ADDRESS are the target's, one per link. Each line on standard input is a JSON object with `do` and
the arguments of that function; each answer is a JSON object, too. The target also has an engine for
each address alone, on `SINGLE_PORT`: over these the initiator can spread its slices in turn.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from inlay.transfer import Access, Batch, Op, RemoteSegment, Transfer, TransferEngine

PORT, SINGLE_PORT = 7200, 7300
SEGMENT_BYTES = 256 << 20
SLICE_BYTES = 64 << 10
STEADY_BYTES, STEADY_DEPTH = 256 << 10, 32
DEADLINE_S = 30
TOKEN = b"token of the benchmark over rails"


def pattern() -> np.ndarray:
    """The same bytes on both ends."""
    return np.random.default_rng(0).integers(0, 256, SEGMENT_BYTES, dtype=np.uint8)


def target(addresses: list[str]) -> None:
    """Offer the pattern until standard input ends."""
    with contextlib.ExitStack() as engines:
        every = engines.enter_context(made(f"0.0.0.0:{PORT}"))
        segment = every.allocate(SEGMENT_BYTES, name="source", remote=Access.READ)
        shared = np.frombuffer(segment, np.uint8)
        shared[:] = pattern()
        for address in addresses:
            single = engines.enter_context(made(f"{address}:{SINGLE_PORT}"))
            single.register(shared, name="source", remote=Access.READ)
        print(json.dumps({"ready": every.address}), flush=True)
        sys.stdin.read()


def made(listen: str) -> TransferEngine:
    """An engine that has tcp alone."""
    return TransferEngine(listen, token=TOKEN, transports=["tcp"])


class Initiator:
    """What the initiator can be told; every answer is of one run."""

    def __init__(self, addresses: list[str]) -> None:
        self._engine = made("0.0.0.0:0")
        self._local = self._engine.allocate(SEGMENT_BYTES)
        self._bytes = np.frombuffer(self._local, np.uint8)
        self._remote = self._engine.connect(f"{addresses[0]}:{PORT}")["source"]
        self._singles = [
            self._engine.connect(f"{address}:{SINGLE_PORT}")["source"] for address in addresses
        ]
        self._pattern = pattern()

    def bulk(self, size: int) -> dict[str, Any]:
        """One read of `size` bytes."""
        start = time.monotonic()
        self._submit(self._remote, 0, size).wait()
        return {"seconds": time.monotonic() - start}

    def slices(self, rate: float, seconds: float, seed: int) -> dict[str, Any]:
        """Slices that arrive at random, `rate` a second: the time of each from its arrival."""
        return self._arriving([self._remote], rate, seconds, seed)

    def round_robin(self, rate: float, seconds: float, seed: int) -> dict[str, Any]:
        """The same arrivals, slice by slice over peers of one link each in turn."""
        return self._arriving(self._singles, rate, seconds, seed)

    def _arriving(
        self, remotes: list[RemoteSegment], rate: float, seconds: float, seed: int
    ) -> dict[str, Any]:
        """Times from submission to completion; the loop submits up to a millisecond late."""
        taken: list[float] = []

        async def one(batch: Batch, submitted: float) -> None:
            await batch
            taken.append(time.monotonic() - submitted)

        async def every() -> None:
            start = time.monotonic()
            async with asyncio.TaskGroup() as running:
                for index, at in enumerate(poisson(rate, seconds, seed)):
                    if (early := start + at - time.monotonic()) > 0:
                        await asyncio.sleep(early)
                    offset = index * SLICE_BYTES % SEGMENT_BYTES
                    submitted = time.monotonic()
                    batch = self._submit(remotes[index % len(remotes)], offset, SLICE_BYTES)
                    running.create_task(one(batch, submitted))

        asyncio.run(every())
        p50_s, p99_s = np.percentile(taken, [50, 99])
        return {"p50_s": float(p50_s), "p99_s": float(p99_s)}

    def steady(self, seconds: float) -> dict[str, Any]:
        """Reads back to back, a few at a time: when each ended, and how many were wrong."""
        ended: list[float] = []
        end = time.monotonic() + seconds
        places = iter(range(0, 1 << 62, STEADY_BYTES))
        self._bytes[:] = 0

        async def reader() -> None:
            while time.monotonic() < end:
                await self._submit(self._remote, next(places) % SEGMENT_BYTES, STEADY_BYTES)
                ended.append(time.monotonic())

        async def every() -> None:
            await asyncio.gather(*(reader() for _ in range(STEADY_DEPTH)))

        asyncio.run(every())
        read = min(next(places), SEGMENT_BYTES)
        wrong = int((self._bytes[:read] != self._pattern[:read]).sum())
        return {"ended": ended, "wrong_bytes": wrong}

    def _submit(self, remote: RemoteSegment, offset: int, size: int) -> Batch:
        view = slice(offset, offset + size)
        return self._engine.submit(
            [Transfer(Op.READ, self._local[view], remote[view])], deadline_s=DEADLINE_S
        )


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Arrival times."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds))
    return [float(at) for at in np.cumsum(gaps)]


def initiator(addresses: list[str]) -> None:
    """Answer line by line; an error is an answer, too."""
    able = Initiator(addresses)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        act: Callable[..., dict[str, Any]] = getattr(able, told.pop("do"))
        try:
            answer = act(**told)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    (target if sys.argv[1] == "target" else initiator)(sys.argv[2:])
