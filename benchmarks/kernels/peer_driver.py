"""Runs another system's MoE script and lets us ask for single calls of its layer.

    PYTHON peer_driver.py FD FOLDER SCRIPT ARGUMENT...

PYTHON is that of the peer's environment, so this file knows only the standard library, NumPy and
what the scripts share: each ends in `moe_layer.measure(recorder, args, variant, shape, prepare,
call, ...)`, which times calls by itself. Here that function answers requests instead. FD is a
socket: a first message describes the layer (JSON), then every request (tokens and calls as JSON,
chosen experts as int64, their weights as float32, three messages) is answered by the milliseconds
of each call (JSON). An empty message ends it.
"""

import json
import runpy
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


def serve_calls(
    connection: Connection, prepare: Callable[[Any, Any], Any], call: Callable[[int, Any], Any]
) -> None:
    """Answer requests until an empty one; calls take the script's layers in turn."""
    done = 0
    while request := connection.recv_bytes():
        shape = json.loads(request)
        ids = np.frombuffer(connection.recv_bytes(), np.int64).reshape(shape)
        weights = np.frombuffer(connection.recv_bytes(), np.float32).reshape(shape)
        taken = []
        for ids_TK, weights_TK in zip(ids, weights, strict=True):
            inputs = prepare(ids_TK.copy(), weights_TK.copy())
            start = time.perf_counter()
            call(done, inputs)
            taken.append((time.perf_counter() - start) * 1e3)
            done += 1
        connection.send_bytes(json.dumps(taken).encode())


def main() -> None:
    """Replace the scripts' timing loop by ours, then run the script as if it had been started."""
    fd, folder, script, *arguments = sys.argv[1:]
    connection = Connection(int(fd))
    sys.path[0] = folder
    sys.argv = [f"{folder}/{script}", *arguments]
    import moe_layer  # type: ignore[import-not-found]

    def measure(
        recorder: Any, args: Any, variant: str, shape: Any, prepare: Any, call: Any, **about: Any
    ) -> None:
        about |= {"peer": recorder.peer, "version": recorder.version, "variant": variant}
        connection.send_bytes(json.dumps(about).encode())
        serve_calls(connection, prepare, call)
        sys.exit(0)

    moe_layer.measure = measure
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
