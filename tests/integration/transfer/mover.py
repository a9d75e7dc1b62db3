"""A process that reads from and writes to a peer until its standard input ends.

Arguments: its address, the peer's, the transports that may move bytes. It prints one line when it
begins, and at the end the number of transfers, or what went wrong.
"""

import sys
import threading

import numpy as np

from inlay.transfer import TransferEngine
from tests.integration.transfer.target import SIZE, TOKEN, pattern

BLOCK = 4 << 20


def main() -> None:
    listen, address, *transports = sys.argv[1:]
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    engine = TransferEngine(listen, token=TOKEN, transports=transports)
    peer = engine.connect(address)
    local, back = engine.allocate(BLOCK), engine.allocate(BLOCK)
    ours, again = np.frombuffer(local, np.uint8), np.frombuffer(back, np.uint8)
    source = pattern(SIZE)
    print("ready", flush=True)
    count = 0
    while not ended.is_set():
        at = (count * 7919 * 4096) % (SIZE - BLOCK)
        engine.read(local, peer["source"][at : at + BLOCK], deadline_s=20)
        np.testing.assert_array_equal(ours, source[at : at + BLOCK])
        engine.write(local, peer["sink"][at : at + BLOCK], deadline_s=20)
        engine.read(back, peer["sink"][at : at + BLOCK], deadline_s=20)
        np.testing.assert_array_equal(again, ours)
        count += 1
    print(count, flush=True)


if __name__ == "__main__":
    main()
