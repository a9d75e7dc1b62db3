"""nixl with its UCX backend between two processes; asked for calls by `drivers.py`.

    python -m benchmarks.transfer.peer_nixl threaded|unthreaded

`read_fresh` and `write_fresh` make, post, await and release a handle for every call;
`read_reposted` and `write_reposted` post handles that were made beforehand. UCX_TLS passes through.
Runs in the environment `nixl` (package nixl, and torch, which it imports).
"""

import base64
import os
import select
import subprocess
import sys
from typing import Any

from benchmarks.transfer.calls import ARENA_BYTES, Call, Walk, claim_stdout, serve, timed

os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
MAX_HANDLES = 256


def start_agent(name: str, mode: str, fill: int) -> tuple[Any, Any, Any]:
    """An agent, its arena, and what keeps the arena registered."""
    import numpy as np
    from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

    config = nixl_agent_config(enable_prog_thread=mode == "threaded", backends=["UCX"])
    agent, arena = nixl_agent(name, config), np.full(ARENA_BYTES, fill, np.uint8)
    kept = agent.register_memory([(arena.ctypes.data, ARENA_BYTES, 0, "")], "DRAM")
    return agent, arena, kept


def target(answers: int, mode: str) -> None:
    """The other process: it ends when its standard input does."""
    agent, arena, _ = start_agent("target", mode, 7)
    about = base64.b64encode(agent.get_agent_metadata()).decode()
    os.write(answers, f"{about} {arena.ctypes.data}\n".encode())
    # Without a progress thread this is what lets the other side connect, and over tcp what answers.
    sleep_s = 0 if mode == "unthreaded" and "tcp" in os.environ.get("UCX_TLS", "") else 0.001
    while not select.select([sys.stdin], [], [], sleep_s)[0]:
        agent.get_new_notifs()
    os._exit(0)


def main(answers: int, mode: str) -> None:
    """Connect, check the bytes once, answer."""
    child = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, mode, "target"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    about, there_text = child.stdout.readline().split()
    there = int(there_text)
    agent, arena, _ = start_agent("initiator", mode, 1)
    here, peer = arena.ctypes.data, agent.add_remote_agent(base64.b64decode(about))

    def handle(op: str, offset: int, size: int) -> Any:
        local = agent.get_xfer_descs([(here + offset, size, 0)], "DRAM")
        remote = agent.get_xfer_descs([(there + offset, size, 0)], "DRAM")
        return agent.initialize_xfer(op, local, remote, peer)

    def post(of: Any) -> None:
        state = agent.transfer(of)
        while state != "DONE":
            if state == "ERR":
                raise RuntimeError("transfer failed")
            state = agent.check_xfer_state(of)

    def fresh(op: str, offset: int, size: int) -> None:
        of = handle(op, offset, size)
        post(of)
        agent.release_xfer_handle(of)

    fresh("READ", 0, 4096)
    assert (arena[:4096] == 7).all()
    walk = Walk()
    made: dict[tuple[str, int], dict[int, Any]] = {}

    def answer(what: str, block_bytes: int, threads: int, calls: int) -> tuple[float, float]:
        word, _, kind = what.partition("_")
        op = word.upper()
        if kind == "fresh":
            call: Call = lambda offset: fresh(op, offset, block_bytes)  # noqa: E731
        else:
            number = min(MAX_HANDLES, ARENA_BYTES // block_bytes)
            if (op, block_bytes) not in made:
                made[op, block_bytes] = {
                    index: handle(op, index * block_bytes, block_bytes) for index in range(number)
                }
            handles = made[op, block_bytes]
            call = lambda offset: post(handles[offset // block_bytes % number])  # noqa: E731
        return timed(lambda thread: call, walk, block_bytes, threads, calls)

    serve(answers, answer)


if __name__ == "__main__":
    descriptor = claim_stdout()
    (target if sys.argv[2:] == ["target"] else main)(descriptor, sys.argv[1])
