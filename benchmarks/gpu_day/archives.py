"""Logs and traces in archives that are small enough to bring back."""

import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

MAX_BYTES = 15 << 20
"""Of an archive; 16 MiB is what machines take back of a file."""
TAIL_BYTES = 2 << 20
"""Of a longer log, which goes on about one thing."""


def pack_logs(folder: Path, archive: Path) -> list[str]:
    """The ends of all logs; see `pack`."""
    with tempfile.TemporaryDirectory() as name:
        for log in folder.iterdir():
            if not log.is_file():
                continue
            with log.open("rb") as file:
                size = log.stat().st_size
                file.seek(max(0, size - TAIL_BYTES))
                (Path(name) / log.name).write_bytes(file.read())
        return pack(sorted(Path(name).iterdir()), archive)


def pack(files: Sequence[Path], archive: Path, max_bytes: int = MAX_BYTES) -> list[str]:
    """Pack files under their names; where they are too many bytes, without the largest ones.

    Returns:
        The names of those that were left out.
    """
    kept = sorted(files, key=lambda file: file.stat().st_size)
    left_out: list[str] = []
    while True:
        partial = archive.with_suffix(".partial")
        with tarfile.open(partial, "w:gz") as tar:
            for file in kept:
                tar.add(file, file.name, recursive=False)
        if partial.stat().st_size <= max_bytes or not kept:
            partial.replace(archive)
            return left_out
        left_out.append(kept.pop().name)
