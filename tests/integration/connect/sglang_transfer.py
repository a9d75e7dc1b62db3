"""SGLang's wrapper of Mooncake's engine, as its prefill and decode instances use it, in a process.

`serve SITE`: register a buffer of zeros; print its session and address; at each line of standard
input print how many of its bytes are still zero. `send SITE SESSION ADDRESS BYTES`: probe the
peer, write pages of a registered buffer there one by one and in a batch, and say what the calls
returned, also of a peer that is not there.
"""

import importlib
import json
import os
import sys
from typing import Any

import numpy as np

from tests.integration.connect.sglang_here import use

PAGE = 16384
NOBODY = "127.0.0.1:9"


def make_engine(site: str) -> Any:
    """By SGLang's function."""
    os.environ["MOONCAKE_PROTOCOL"] = "tcp"
    use(site)
    module = importlib.import_module(
        "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
    )
    return module.init_mooncake_transfer_engine("127.0.0.1", gpu_id=0)


def serve(site: str) -> None:
    """The decode side."""
    engine, memory = make_engine(site), np.zeros(64 * PAGE, np.uint8)
    assert engine.batch_register([memory.ctypes.data], [memory.nbytes]) == 0
    print(json.dumps([engine.get_session_id(), memory.ctypes.data, memory.nbytes]), flush=True)
    for _ in sys.stdin:
        print(int((memory == 0).sum()), flush=True)
    assert engine.batch_deregister([memory.ctypes.data]) == 0


def send(site: str, session: str, address: int, size: int) -> None:
    """The prefill side."""
    engine, memory = make_engine(site), np.ones(size, np.uint8)
    engine.register(memory.ctypes.data, memory.nbytes)
    here = [memory.ctypes.data + at for at in range(0, size, PAGE)]
    there = [address + at for at in range(0, size, PAGE)]
    found = [
        engine.send_probe(session),
        engine.transfer_sync(session, here[0], there[0], PAGE),
        engine.batch_transfer_sync(session, here[1:], there[1:], [PAGE] * (len(here) - 1)),
        engine.send_probe(NOBODY),
        engine.transfer_sync(NOBODY, here[0], there[0], PAGE),
    ]
    engine.deregister(memory.ctypes.data)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        send(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
