"""One process of connect/weights, told what to do by `weights.py`, line by line in JSON.

    python -m benchmarks.connect.weights_side LISTEN

The address that it prints first is where its engine listens. `publish` and `pull` each have an
engine of their own kind: any process does either.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from inlay.transfer import TransferEngine
from inlay.weights import Held, MemoryLanding, Publisher, pull

TOKEN = b"token of the benchmark of weights"
TENSORS = 64
NAME = "benchmark"


class Side:
    """What the process can be told. An engine listens from the beginning."""

    def __init__(self, listen: str) -> None:
        self._listen = listen
        self.engine = TransferEngine(listen, token=TOKEN)
        self._publishers: list[Publisher] = []
        self._rooms: list[Any] = []
        self._held: Held | None = None

    def publish(self, version: str, directory: str) -> dict[str, Any]:
        """A directory of safetensors, by this process's engine."""
        if not self._publishers:
            self._publishers.append(Publisher(self.engine, NAME))
        manifest = self._publishers[0].publish(version, Path(directory))
        return {"size": manifest.size_bytes}

    def publish_tensors(self, version: str, size: int, listens: list[str]) -> dict[str, Any]:
        """Random tensors, an equal part of them by an engine at each of these addresses."""
        tensors = random_tensors(size // len(listens))
        addresses = []
        for number, listen in enumerate(listens):
            engine = TransferEngine(listen, token=TOKEN)
            publisher = Publisher(engine, f"{NAME}{number}")
            publisher.publish(version, tensors)
            self._publishers.append(publisher)
            addresses.append(engine.address)
        return {"addresses": addresses}

    def room(self, size: int) -> dict[str, Any]:
        """Memory for what is pulled from now on, faulted in."""
        self._rooms.append(self.engine.allocate(size))
        return {}

    def pull(self, version: str, publishers: list[str], name: str = NAME) -> dict[str, Any]:
        """Pull into memory, and hold it for others until the next one."""
        self.release()
        Path("/proc/self/clear_refs").write_text("5")
        room = self._rooms[0] if self._rooms else None
        began_s = time.monotonic()
        self._held = pull(
            self.engine, publishers, name, version=version, landing=MemoryLanding(room)
        )
        return {
            "seconds": time.monotonic() - began_s,
            "taken": self._held.report.taken_bytes,
            "peak_bytes": peak_bytes(),
        }

    def pull_apart(self, version: str, publishers: list[str]) -> dict[str, Any]:
        """A part from each publisher, all at the same time, each from an engine of its own."""
        began_s = time.monotonic()
        failures: list[BaseException] = []

        def part(number: int, address: str) -> None:
            try:
                with (
                    TransferEngine(token=TOKEN) as engine,
                    pull(
                        engine,
                        [address],
                        f"{NAME}{number}",
                        version=version,
                        landing=MemoryLanding(),
                    ),
                ):
                    pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=part, args=about) for about in enumerate(publishers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return {"seconds": time.monotonic() - began_s}

    def release(self) -> dict[str, Any]:
        """Hold nothing any more."""
        if self._held is not None:
            self._held.close()
            self._held = None
        return {}


def random_tensors(size: int) -> dict[str, Any]:
    """Tensors of so many bytes together, of bytes that cannot be guessed."""
    drawn = np.random.default_rng(0).integers(0, 256, (TENSORS, size // TENSORS), dtype=np.uint8)
    return {f"tensor{number}": row for number, row in enumerate(drawn)}


def peak_bytes() -> int:
    """The most memory of this process since it was asked to forget."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def main(listen: str) -> None:
    """Answer line by line; an error is an answer, too."""
    side = Side(listen)
    print(json.dumps({"address": side.engine.address}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        try:
            answer = getattr(side, told.pop("do"))(**told)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
