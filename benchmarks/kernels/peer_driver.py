"""Runs another system's MoE script and lets us ask for single calls of its layer.

    PYTHON peer_driver.py FD CHECK FOLDER SCRIPT ARGUMENT...

PYTHON is that of the peer's environment, so this file knows only the standard library, NumPy and
what the scripts share: each ends in `moe_layer.measure(recorder, args, variant, shape, prepare,
call, ...)`, which times calls by itself. Here that function answers requests instead. FD is a
socket: a first message describes the layer (JSON), then every request (tokens and calls as JSON,
chosen experts as int64, their weights as float32, three messages) is answered by the milliseconds
of each call (JSON). An empty message ends it.

CHECK is `-`, or a folder with the inputs of one call as raw arrays: gate, up, down (float32, per
expert), x (float32), ids (int64), weights (float32). The layer is then built of these, and its
answer to the check that each script makes is left there as `out` (float32).
"""

import json
import runpy
import sys
import time
import unittest.mock
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
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


def give_inputs(moe_layer: Any, check: Path) -> None:
    """Make the script build its layer of our weights and answer our inputs in its check."""
    import torch

    def read(name: str, *shape: int, dtype: type = np.float32) -> Any:
        return np.fromfile(check / name, dtype).reshape(shape)

    parts: list[Any] = []

    def random_weights(s: Any, rows: int, columns: int) -> Any:
        if not parts:
            wide = (s.experts, s.intermediate, s.hidden)
            parts.extend((read("gate", *wide), read("up", *wide)))
            parts.append(read("down", s.experts, s.hidden, s.intermediate))
        taken = parts.pop(0)
        if rows == 2 * taken.shape[1]:  # gate and up in one
            taken = np.concatenate((taken, parts.pop(0)), axis=1)
        assert taken.shape[1:] == (rows, columns)
        return torch.from_numpy(taken).to(torch.bfloat16)

    def check_inputs(s: Any, prepare: Callable[[Any, Any], Any]) -> Any:
        x = torch.from_numpy(read("x", -1, s.hidden))
        ids = read("ids", -1, s.top_k, dtype=np.int64)
        # prepare() draws x.
        with unittest.mock.patch("torch.randn", lambda *shape: x.reshape(shape)):
            return prepare(ids, read("weights", -1, s.top_k))

    def relative_error(
        s: Any, x: Any, ids: Any, weights: Any, result: Any, *weight_parts: Any
    ) -> float:
        result.float().numpy().tofile(check / "out")
        return 0.0

    moe_layer.random_weights = random_weights
    moe_layer.check_inputs = check_inputs
    moe_layer.relative_error = relative_error


def main() -> None:
    """Replace the scripts' timing loop by ours, then run the script as if it had been started."""
    fd, check, folder, script, *arguments = sys.argv[1:]
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
    moe_layer.relative_error = lambda *about: 0.0  # takes the scripts seconds
    if check != "-":
        give_inputs(moe_layer, Path(check))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
