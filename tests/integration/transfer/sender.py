"""One of several processes that move bytes over the same network card.

    python -m tests.integration.transfer.sender ADDRESS read|write interactive|background

It prints "ready" and moves bytes until it is killed. For each line on standard input it prints how
many have moved, and when, as JSON: a list of [seconds of the monotonic clock, bytes].
"""

import json
import sys
import threading
import time

from inlay.transfer import Access, Op, Transfer, TransferConfig, TransferEngine
from tests.integration.transfer.target import SIZE, TOKEN

CHUNK = 128 << 10  # more than what keeps to the connections of small messages
DEPTH = 16


def main() -> None:
    address, how, traffic_class = sys.argv[1:]
    config = TransferConfig(traffic_class=traffic_class)  # type: ignore[arg-type]
    moved: list[tuple[float, int]] = []
    with TransferEngine("0.0.0.0:0", token=TOKEN, transports=["tcp"], config=config) as engine:
        op = Op.READ if how == "read" else Op.WRITE
        remote = engine.connect(address)["source" if how == "read" else "sink"]
        local = engine.allocate(DEPTH * CHUNK, remote=Access.NONE)

        def answer() -> None:
            for _ in sys.stdin:
                print(json.dumps(moved), flush=True)

        threading.Thread(target=answer, daemon=True).start()
        print("ready", flush=True)
        running = []
        for number in range(1 << 30):
            if len(running) == DEPTH:
                running.pop(0).wait()
                moved.append((time.monotonic(), CHUNK))
            at = number % DEPTH * CHUNK
            there = number * CHUNK % (SIZE - CHUNK)
            transfer = Transfer(op, local[at : at + CHUNK], remote[there : there + CHUNK])
            running.append(engine.submit([transfer]))


if __name__ == "__main__":
    main()
