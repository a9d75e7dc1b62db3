"""Mooncake's Transfer Engine, protocol tcp, between two processes; asked for calls by `drivers.py`.

Runs in the environment `mooncake` (package mooncake-transfer-engine-non-cuda, Debian libibverbs1).
"""

import os
import subprocess
import sys
from typing import Any

from benchmarks.transfer.calls import ARENA_BYTES, Call, Walk, claim_stdout, serve, timed

os.environ.setdefault("GLOG_minloglevel", "2")
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")


def start_engine(fill: int) -> tuple[Any, Any]:
    """An engine and its arena."""
    import numpy as np
    from mooncake.engine import TransferEngine  # type: ignore[import-not-found]

    engine, arena = TransferEngine(), np.full(ARENA_BYTES, fill, np.uint8)
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.register_memory(arena.ctypes.data, ARENA_BYTES) == 0
    return engine, arena


def target(answers: int) -> None:
    """The other process: it ends when its standard input does."""
    engine, arena = start_engine(7)
    os.write(answers, f"127.0.0.1:{engine.get_rpc_port()} {arena.ctypes.data}\n".encode())
    sys.stdin.read()
    os._exit(0)


def main(answers: int) -> None:
    """Connect, check the bytes once, answer."""
    child = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "target"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    peer, there_text = child.stdout.readline().split()
    there = int(there_text)
    engine, arena = start_engine(1)
    here = arena.ctypes.data
    assert engine.transfer_sync_read(peer, here, there, 4096) == 0 and (arena[:4096] == 7).all()
    walk = Walk()

    def answer(what: str, block_bytes: int, threads: int, calls: int) -> tuple[float, float]:
        move = getattr(engine, f"transfer_sync_{what}")

        def call(offset: int) -> None:
            if code := move(peer, here + offset, there + offset, block_bytes):
                raise RuntimeError(f"code {code}")

        def make_call(thread: int) -> Call:
            return call

        return timed(make_call, walk, block_bytes, threads, calls)

    serve(answers, answer)


if __name__ == "__main__":
    (target if sys.argv[1:] == ["target"] else main)(claim_stdout())
