"""One end of transfer/rails, in a network namespace of its own; told what to do by `rails.py`.

    python -m benchmarks.transfer.rails_side target ADDRESS...
    python -m benchmarks.transfer.rails_side initiator ADDRESS...

ADDRESS are the target's, one per link. Each line on standard input is a JSON object with `do` and
the arguments of that function; each answer is a JSON object, too. The target also answers plain
requests on `ROUND_ROBIN_PORT` of each address: what the initiator spreads its slices over in turn.
"""

import asyncio
import json
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from inlay.transfer import Access, Op, Transfer, TransferEngine

PORT, ROUND_ROBIN_PORT = 7200, 7300
SEGMENT_BYTES = 256 << 20
SLICE_BYTES = 64 << 10
STEADY_BYTES, STEADY_DEPTH = 256 << 10, 32
DEADLINE_S = 30
TOKEN = b"token of the benchmark over rails"


def pattern() -> np.ndarray:
    """The same bytes on both ends."""
    return np.random.default_rng(0).integers(0, 256, SEGMENT_BYTES, dtype=np.uint8)


def receive(wire: socket.socket, room: memoryview) -> bool:
    """Fill the room; False at the end of the stream."""
    while len(room):
        got = wire.recv_into(room)
        if not got:
            return False
        room = room[got:]
    return True


def serve_plainly(address: str) -> None:
    """Answer each offset with a slice's bytes."""
    data = bytes(SLICE_BYTES)
    listener = socket.create_server((address, ROUND_ROBIN_PORT))
    while True:
        wire, _ = listener.accept()
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = bytearray(8)
        while receive(wire, memoryview(asked)):
            wire.sendall(data)


def target(addresses: list[str]) -> None:
    """Offer the pattern until standard input ends."""
    for address in addresses:
        threading.Thread(target=serve_plainly, args=(address,), daemon=True).start()
    with TransferEngine(f"0.0.0.0:{PORT}", token=TOKEN, transports=["tcp"]) as engine:
        segment = engine.allocate(SEGMENT_BYTES, name="source", remote=Access.READ)
        np.frombuffer(segment, np.uint8)[:] = pattern()
        print(json.dumps({"ready": engine.address}), flush=True)
        sys.stdin.read()
        segment.deregister(cancel=True)


class Initiator:
    """What the initiator can be told; every answer is of one run."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._engine = TransferEngine("0.0.0.0:0", token=TOKEN, transports=["tcp"])
        self._local = self._engine.allocate(SEGMENT_BYTES)
        self._bytes = np.frombuffer(self._local, np.uint8)
        self._remote = self._engine.connect(f"{addresses[0]}:{PORT}")["source"]
        self._pattern = pattern()

    def bulk(self, size: int) -> dict[str, Any]:
        """One read of `size` bytes."""
        start = time.monotonic()
        self._submit(0, size).wait()
        return {"seconds": time.monotonic() - start}

    def slices(self, rate: float, seconds: float, seed: int) -> dict[str, Any]:
        """Slices that arrive at random, `rate` a second: the time of each from its arrival."""
        arrivals = poisson(rate, seconds, seed)

        async def one(index: int, due: float) -> float:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._submit(index * SLICE_BYTES % SEGMENT_BYTES, SLICE_BYTES)
            return time.monotonic() - due

        async def every() -> list[float]:
            start = time.monotonic() + 0.05
            return await asyncio.gather(*(one(i, start + at) for i, at in enumerate(arrivals)))

        return {"p99_s": float(np.percentile(asyncio.run(every()), 99))}

    def round_robin(self, rate: float, seconds: float, seed: int) -> dict[str, Any]:
        """The same arrivals, slice by slice over the links in turn."""
        arrivals = poisson(rate, seconds, seed)
        start = time.monotonic() + 0.05
        waiting: list[queue.SimpleQueue[float | None]] = [
            queue.SimpleQueue() for _ in self._addresses
        ]
        taken: list[float] = []

        def work(address: str, own: "queue.SimpleQueue[float | None]") -> None:
            with socket.create_connection((address, ROUND_ROBIN_PORT)) as wire:
                wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                room = memoryview(bytearray(SLICE_BYTES))
                while (due := own.get()) is not None:
                    wire.sendall(struct.pack("<q", 0))
                    receive(wire, room)
                    taken.append(time.monotonic() - due)

        threads = [
            threading.Thread(target=work, args=pair)
            for pair in zip(self._addresses, waiting, strict=True)
        ]
        for thread in threads:
            thread.start()
        for index, at in enumerate(arrivals):
            time.sleep(max(0.0, start + at - time.monotonic()))
            waiting[index % len(waiting)].put(start + at)
        for own, thread in zip(waiting, threads, strict=True):
            own.put(None)
            thread.join()
        return {"p99_s": float(np.percentile(taken, 99))}

    def steady(self, seconds: float) -> dict[str, Any]:
        """Reads back to back, a few at a time: when each ended, and how many were wrong."""
        ended: list[float] = []
        end = time.monotonic() + seconds
        places = iter(range(0, 1 << 62, STEADY_BYTES))
        self._bytes[:] = 0

        async def reader() -> None:
            while time.monotonic() < end:
                await self._submit(next(places) % SEGMENT_BYTES, STEADY_BYTES)
                ended.append(time.monotonic())

        async def every() -> None:
            await asyncio.gather(*(reader() for _ in range(STEADY_DEPTH)))

        asyncio.run(every())
        read = min(next(places), SEGMENT_BYTES)
        wrong = int((self._bytes[:read] != self._pattern[:read]).sum())
        return {"ended": ended, "wrong_bytes": wrong}

    def _submit(self, offset: int, size: int) -> Any:
        view = slice(offset, offset + size)
        return self._engine.submit(
            [Transfer(Op.READ, self._local[view], self._remote[view])], deadline_s=DEADLINE_S
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
