"""A process that offers memory, and does what the test tells it on standard input.

Arguments: the address to listen at, and the transports that may move bytes.

It prints its address first, then one JSON value per command: the result of the expression, in which
`engine`, `segments` (by name), `np`, `Access`, `Op`, `Transfer` and `cut_side_channels` are known.
"""

import json
import os
import socket
import sys
from pathlib import Path

import numpy as np

from inlay.transfer import Access, Op, Transfer, TransferEngine

TOKEN = b"token of the integration tests..."
SIZE = 80 << 20


def pattern(size: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The same bytes in every process."""
    words = np.random.default_rng(seed).integers(0, 2**64 - 1, -(-size // 8), np.uint64, True)
    return words.view(np.uint8)[:size]


def cut_side_channels() -> int:
    """Ends the Unix connections of this process; returns how many there were."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            is_socket = os.readlink(descriptor).startswith("socket:")
        except FileNotFoundError:  # the one that lists them
            continue
        if not is_socket:
            continue
        other = socket.socket(fileno=os.dup(int(descriptor.name)))
        with other:
            listens = other.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if other.family == socket.AF_UNIX and not listens:
                other.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def obey(engine: TransferEngine, **known: object) -> None:
    """Say the engine's address, then do what is told, until there is no more."""
    known |= {"engine": engine, "np": np, "Access": Access, "Op": Op, "Transfer": Transfer}
    print(engine.address, flush=True)
    for line in sys.stdin:
        result = eval(line, known)
        print(json.dumps(result if isinstance(result, int | str | list) else None), flush=True)


def main() -> None:
    listen, *transports = sys.argv[1:] or ["127.0.0.1:0"]
    engine = TransferEngine(listen, token=TOKEN, transports=transports)
    source = pattern(SIZE)
    segments = {
        "source": engine.register(source, name="source"),
        "sink": engine.allocate(SIZE, name="sink", remote=Access.WRITE),
        "private": engine.allocate(4096, name="private", remote=Access.NONE),
    }
    obey(engine, segments=segments, cut_side_channels=cut_side_channels)


if __name__ == "__main__":
    main()
