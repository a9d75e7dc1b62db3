"""The reader of transfer/failover.

    python -m benchmarks.transfer.failover_side LISTEN ADDRESS BETTER_TRANSPORT OTHER...

It prints "ready" and reads until it is killed. For each line on standard input it prints as JSON
what ended since the last one: [seconds of the monotonic clock, bytes that the better transport has
moved by then], one for each read.
"""

import json
import sys
import threading
import time

import numpy as np

from inlay.transfer import Access, Op, Transfer, TransferEngine
from tests.integration.transfer.target import SIZE, TOKEN, pattern

CHUNK = 256 << 10
DEPTH = 2


def main() -> None:
    """Read until killed."""
    listen, address, *transports = sys.argv[1:]
    ended: list[tuple[float, int]] = []
    expected = pattern(SIZE)
    with TransferEngine(listen, token=TOKEN, transports=transports) as engine:
        remote = engine.connect(address)["source"]
        local = engine.allocate(DEPTH * CHUNK, remote=Access.NONE)
        landed = np.frombuffer(local, np.uint8)

        def answer() -> None:
            for _ in sys.stdin:
                told, ended[:] = ended[:], []
                print(json.dumps(told), flush=True)

        threading.Thread(target=answer, daemon=True).start()
        print("ready", flush=True)
        running = []
        for number in range(1 << 40):
            at, there = number % DEPTH * CHUNK, number * CHUNK % (SIZE - CHUNK)
            if len(running) == DEPTH:
                batch, was = running.pop(0)
                batch.wait()
                better = [path for path in engine.paths() if path.transport == transports[0]]
                ended.append((time.monotonic(), sum(path.read_bytes for path in better)))
                if (landed[at : at + CHUNK] != expected[was : was + CHUNK]).any():
                    sys.exit(f"wrong bytes at {was}")
            transfer = Transfer(Op.READ, local[at : at + CHUNK], remote[there : there + CHUNK])
            running.append((engine.submit([transfer]), there))


if __name__ == "__main__":
    main()
