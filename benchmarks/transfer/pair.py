"""Two engines in two processes: this one asks, the other offers memory.

    python -m benchmarks.transfer.pair TRANSPORT BYTES

is the other: it prints its address, offers `allocated` and `foreign` memory of BYTES bytes each,
and ends when its standard input does. Foreign memory is what the engine did not allocate: a NumPy
array.
"""

import sys
from types import TracebackType

import numpy as np

from benchmarks.transfer.told import Told, module
from inlay.transfer import Access, Op, Segment, Transfer, TransferEngine

MEMORIES = ("allocated", "foreign")
FILL = 7
DEADLINE_S = 60


def transport_problem(transport: str) -> str | None:
    """Why this transport cannot be measured here, or None."""
    with TransferEngine() as engine:
        return engine.transports.get(transport, "there is none of this name")


def open_engine(transport: str) -> TransferEngine:
    """An engine that uses this transport alone."""
    return TransferEngine(transports=[transport])


def offer(
    engine: TransferEngine, size: int, fill: int
) -> tuple[dict[str, Segment], dict[str, np.ndarray]]:
    """Segments of both kinds, and their bytes, by name."""
    allocated = engine.allocate(size, name="allocated", remote=Access.WRITE)
    foreign = np.empty(size, np.uint8)
    arrays = {"allocated": np.frombuffer(allocated, np.uint8), "foreign": foreign}
    for array in arrays.values():
        array[:] = fill
    registered = engine.register(foreign, name="foreign", remote=Access.WRITE)
    return {"allocated": allocated, "foreign": registered}, arrays


class Pair:
    """This process's engine, connected to another's. Use it in a `with` block.

    Attributes:
        engine: ours.
        local, remote: the segments here and there by name.
    """

    def __init__(self, transport: str, size: int) -> None:
        self._target = Told(module("benchmarks.transfer.pair", transport, str(size)))
        self.engine = open_engine(transport)
        self.local, self._arrays = offer(self.engine, size, 1)
        peer = self.engine.connect(self._target.first)
        self.remote = {name: peer[name] for name in MEMORIES}

    def move(self, op: Op, memory: str, offset: int, size: int) -> None:
        """A transfer made, submitted and awaited."""
        view = slice(offset, offset + size)
        transfer = Transfer(op, self.local[memory][view], self.remote[memory][view])
        self.engine.submit([transfer], deadline_s=DEADLINE_S).wait()

    def check(self, memory: str) -> None:
        """See that bytes come and go, over all of it: pages of mappings are made at first touch."""
        size = self.remote[memory].size
        self.move(Op.READ, memory, 0, size)
        assert (self._arrays[memory] == FILL).all()
        self.move(Op.WRITE, memory, 0, size)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.engine.close()
        self._target.close()


def main() -> None:
    """The other process."""
    with open_engine(sys.argv[1]) as engine:
        kept = offer(engine, int(sys.argv[2]), FILL)
        print(engine.address, flush=True)
        sys.stdin.read()
        del kept


if __name__ == "__main__":
    main()
