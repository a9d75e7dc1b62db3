"""Layers of other systems, asked for single calls: our side of `peer_driver.py`, `ggml_driver.cpp`.

A peer lives in a process of its own, in its environment
(`${INLAY_PEERS:-~/.cache/inlay-peers}/<environment>`, as `setup.sh` of the scripts builds it). It
answers only when asked, so that its calls take turns with ours.
"""

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ANSWER_S = 600  # packing weights takes peers minutes
ENVIRONMENTS = Path(os.environ.get("INLAY_PEERS", Path.home() / ".cache" / "inlay-peers"))


@dataclass(frozen=True, kw_only=True)
class PeerKind:
    """One form of a peer's layer.

    Attributes:
        script, variant: the file under `--peers` and its argument: a Python script, or ggml's
            C++ program.
        environment: what it runs in.
        idle_s: how long its threads spin after a call; the next side waits that long.
    """

    script: str
    variant: str
    environment: str
    idle_s: float = 0.005


class PeerFailed(RuntimeError):
    """The peer's process ended instead of answering; the message ends with what it printed."""


class PeerLayer:
    """A running peer. Use it in a `with` block.

    Args:
        folder: the scripts (`--peers`).
        shape: hidden, intermediate, experts, top_k.
        check: a folder with weights and inputs (peer_driver.py names its files); the peer builds
            its layer of them and leaves its output there, before it is asked for anything.

    Raises:
        PeerFailed: when the environment or the script cannot run.
    """

    def __init__(
        self,
        folder: Path,
        kind: PeerKind,
        shape: Sequence[int],
        threads: int,
        check: Path | None = None,
    ) -> None:
        self.kind = kind
        prepare = _ggml if kind.script.endswith(".cpp") else _python
        driver, arguments = prepare(folder, kind, "/".join(map(str, shape)), str(threads))
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._log = tempfile.TemporaryFile()
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [*driver, str(fd), str(check or "-"), *arguments],
                pass_fds=[fd],
                stdout=self._log,
                stderr=self._log,
            )
        try:
            about = self._receive()
        except PeerFailed:
            self.close()
            raise
        self.label = f"{about['peer']} {about['version']} {about['variant']}"

    def __enter__(self) -> "PeerLayer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def milliseconds(self, ids_CTK: np.ndarray, weights_CTK: np.ndarray) -> list[float]:
        """Time C calls with the given routing; activations are the peer's own random ones."""
        self._connection.send_bytes(json.dumps(ids_CTK.shape).encode())
        self._connection.send_bytes(ids_CTK.astype(np.int64).tobytes())
        self._connection.send_bytes(weights_CTK.astype(np.float32).tobytes())
        found: list[float] = self._receive()
        time.sleep(self.kind.idle_s)
        return found

    def close(self) -> None:
        """End the process."""
        try:
            self._connection.send_bytes(b"")
            self._process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._connection.close()
        self._log.close()

    def _receive(self) -> Any:
        if not self._connection.poll(ANSWER_S):
            self._process.kill()
        try:
            return json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            self._process.wait()
            self._log.seek(0)
            tail = self._log.read().decode(errors="replace")[-500:]
            raise PeerFailed(f"{self.kind.script} {self.kind.variant}: {tail}") from error


def _python(folder: Path, kind: PeerKind, sizes: str, threads: str) -> tuple[list[str], list[str]]:
    """The driver of a Python script and its arguments behind the socket."""
    python = ENVIRONMENTS / kind.environment / "bin" / "python"
    if not python.exists():
        raise PeerFailed(f"{kind.script}: {python} is missing")
    script = [str(folder), kind.script, kind.variant]
    return [str(python), str(HERE / "peer_driver.py")], [
        *script, "--shape", sizes, "--threads", threads,
    ]  # fmt: skip


def _ggml(folder: Path, kind: PeerKind, sizes: str, threads: str) -> tuple[list[str], list[str]]:
    """The driver of ggml's program, compiled together with it, and its arguments."""
    home = ENVIRONMENTS / kind.environment
    libraries = home / "build" / "bin"
    if not list(libraries.glob("libggml.so*")):
        raise PeerFailed(f"{kind.script}: {libraries} has no libggml.so")
    program = ENVIRONMENTS / "bin" / "ggml_driver"
    program.parent.mkdir(exist_ok=True)
    build = [
        "g++", "-O3", "-march=native", "-pthread", str(HERE / "ggml_driver.cpp"), f"-I{folder}",
        f"-I{home}/source/ggml/include", f"-L{libraries}", "-lggml", "-lggml-cpu", "-lggml-base",
        f"-Wl,-rpath,{libraries}", "-o", str(program),
    ]  # fmt: skip
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerFailed(f"{kind.script}: {done.stderr[-500:]}")
    return [str(program)], [kind.variant, sizes, threads]
