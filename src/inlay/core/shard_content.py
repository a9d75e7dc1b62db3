"""The content of safetensors shards, as far as names of what depends on it need it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

_WHOLE_BYTES = 32 << 20
_SAMPLES = 4096
_SAMPLE_BYTES = 4096


class Digest(Protocol):
    """A hash of `hashlib`."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""
        ...


def add_content(digest: Digest, files: Sequence[Path]) -> None:
    """Add shards to a digest: of each its size, its header, and its data.

    The header has names, dtypes, shapes and offsets. The data are whole where the shards have at
    most 32 MiB together, else 4 KiB at each of 4,096 places spread evenly: a change that touches
    few tensors of a large model and keeps all headers can go unseen.

    Raises:
        OSError: a file cannot be read.
    """
    total = sum(file.stat().st_size for file in files)
    for file in files:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = 8 + int.from_bytes(stream.read(8), "little")
            stream.seek(0)
            digest.update(size.to_bytes(8, "little") + stream.read(start))
            if total <= _WHOLE_BYTES:
                digest.update(stream.read())
                continue
            samples = max(1, _SAMPLES * size // total)
            for i in range(samples):
                stream.seek(start + (size - start) * i // samples)
                digest.update(stream.read(_SAMPLE_BYTES))
