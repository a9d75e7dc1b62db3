"""A process with device memory, which does what the test tells it on standard input.

As `target`; `cuda` is the driver, `device` the address of the segments "source" (READ) and "sink"
(WRITE), each of SIZE bytes, which lie in one allocation.
"""

import hashlib
import sys

from inlay.transfer import Access, TransferEngine
from tests.integration.transfer.target import TOKEN, obey, pattern
from tests.support.cuda import Cuda

SIZE = 24 << 20
APART = 512  # bytes between the two


def main() -> None:
    transports = sys.argv[1:]
    cuda = Cuda()
    engine = TransferEngine(token=TOKEN, transports=transports)
    device = cuda.allocate(2 * SIZE + APART)
    sink = device + SIZE + APART
    cuda.put(device, pattern(SIZE).tobytes())
    segments = {
        "source": engine.register((device, SIZE), name="source"),
        "sink": engine.register((sink, SIZE), name="sink", remote=Access.WRITE),
    }

    def digest(start: int, stop: int) -> str:
        return hashlib.blake2b(cuda.get(sink + start, stop - start)).hexdigest()

    obey(engine, segments=segments, cuda=cuda, device=device, sink=sink, digest=digest, SIZE=SIZE)


if __name__ == "__main__":
    main()
