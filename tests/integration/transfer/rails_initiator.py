"""Moves bytes over several links while a test cuts them, and compares every one.

It connects to the address that is its argument, prints "ready", works for as many seconds as a line
on standard input says, and prints what came of it as JSON; again for each line.
"""

import json
import sys
import time

import numpy as np

from inlay.core.errors import InlayError
from inlay.transfer import Access, Op, Transfer, TransferEngine
from tests.integration.transfer.target import SIZE, TOKEN, pattern

CHUNK = 4 << 20
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


def main() -> None:
    address = sys.argv[1]
    with TransferEngine("0.0.0.0:0", token=TOKEN) as engine:
        engine.connect(address)
        print("ready", flush=True)
        for line in sys.stdin:
            name, value = line.split()
            result = (
                work(engine, address, float(value), 1)
                if name == "work"
                else rate(engine, address, int(value))
            )
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
