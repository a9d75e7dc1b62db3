"""Moves bytes over several links while a test cuts them, and compares every one.

It connects to the address that is its first argument, listens at the second, prints "ready", does
what each line on standard input says ("work 8" for 8 seconds), and prints what came of it as JSON.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np

from inlay.core.errors import InlayError
from inlay.transfer import Access, Op, Transfer, TransferEngine
from tests.integration.transfer.target import SIZE, TOKEN, pattern

CHUNK = 4 << 20
MANY = 48 << 20
DEPTH = 4


def work(engine: TransferEngine, address: str, seconds: float, seed: int) -> dict[str, object]:
    peer = engine.connect(address)
    source, sink = peer["source"], peer["sink"]
    expected = pattern(SIZE)
    rng = np.random.default_rng(seed)
    local = engine.allocate(DEPTH * CHUNK, remote=Access.NONE)
    view = np.frombuffer(local, np.uint8)
    errors: list[str] = []
    wrong = moved = 0
    stall_s = 0.0
    end = time.monotonic() + seconds
    last = time.monotonic()
    running: list[tuple[object, int, int]] = []

    def read(slot: int) -> None:
        at = int(rng.integers(0, SIZE - CHUNK))
        near = local[slot * CHUNK : (slot + 1) * CHUNK]
        batch = engine.submit([Transfer(Op.READ, near, source[at : at + CHUNK])], deadline_s=20)
        running.append((batch, slot, at))

    for slot in range(DEPTH):
        read(slot)
    while running:
        batch, slot, at = running.pop(0)
        try:
            batch.wait()  # type: ignore[attr-defined]
        except InlayError as error:
            errors.append(repr(error))
            break
        now = time.monotonic()
        stall_s, last = max(stall_s, now - last), now
        here = view[slot * CHUNK : (slot + 1) * CHUNK]
        moved += CHUNK
        wrong += not np.array_equal(here, expected[at : at + CHUNK])
        if now < end and rng.integers(4) == 0:  # there and back
            to = slot * CHUNK + int(rng.integers(0, 4096)) if slot + 1 < DEPTH else slot * CHUNK
            try:
                engine.write(
                    local[slot * CHUNK : slot * CHUNK + CHUNK // 2],
                    sink[to : to + CHUNK // 2],
                    deadline_s=20,
                )
                here[: CHUNK // 2] = 0
                engine.read(
                    local[slot * CHUNK : slot * CHUNK + CHUNK // 2],
                    sink[to : to + CHUNK // 2],
                    deadline_s=20,
                )
            except InlayError as error:
                errors.append(repr(error))
                break
            moved += CHUNK
            wrong += not np.array_equal(here, expected[at : at + CHUNK])
            last = time.monotonic()
        if now < end:
            read(slot)
    local.deregister(cancel=True)
    return {"errors": errors, "wrong": wrong, "moved": moved, "stall_s": stall_s}


def rate(engine: TransferEngine, address: str, total: int) -> float:
    """Bytes per second of one large read."""
    source = engine.connect(address)["source"]
    local = engine.allocate(SIZE, remote=Access.NONE)
    begin = time.monotonic()
    batches = [engine.submit([Transfer(Op.READ, local, source)]) for _ in range(total // SIZE)]
    for batch in batches:
        batch.wait()
    seconds = time.monotonic() - begin
    local.deregister()
    return len(batches) * SIZE / seconds


class Stale:
    """Transfers whose memory is used for something else as soon as they are complete."""

    def __init__(self, engine: TransferEngine, address: str) -> None:
        self.engine = engine
        peer = engine.connect(address)
        self.source, self.sink = peer["source"][0:MANY], peer["sink"][0:MANY]
        self.out = engine.allocate(MANY, remote=Access.NONE)
        self.into = engine.allocate(MANY, remote=Access.NONE)

    def write(self, value: int) -> None:
        np.frombuffer(self.out, np.uint8)[:] = value
        self.engine.write(self.out, self.sink)

    def read(self, value: int) -> bool:
        """Whether it was right; then the memory is filled with `value`."""
        self.engine.read(self.into, self.source)
        view = np.frombuffer(self.into, np.uint8)
        right = np.array_equal(view, pattern(SIZE)[:MANY])
        view[:] = value
        return right

    def others(self, value: int) -> int:
        """How many bytes are no longer `value`."""
        return int((np.frombuffer(self.into, np.uint8) != value).sum())


def main() -> None:
    address, listen = sys.argv[1:]
    with TransferEngine(listen, token=TOKEN, transports=["tcp"]) as engine:
        stale = Stale(engine, address)
        commands: dict[str, Callable[[float], object]] = {
            "work": lambda seconds: work(engine, address, seconds, 1),
            "rate": lambda total: rate(engine, address, int(total)),
            "write": lambda value: stale.write(int(value)),
            "read": lambda value: stale.read(int(value)),
            "others": lambda value: stale.others(int(value)),
        }
        print("ready", flush=True)
        for line in sys.stdin:
            name, value = line.split()
            print(json.dumps(commands[name](float(value))), flush=True)


if __name__ == "__main__":
    main()
