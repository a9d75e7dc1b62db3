"""What nodes of the store find here: room for segments, and the pages that these come in."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from inlay.core.system_files import read_text


@dataclass(frozen=True, kw_only=True)
class StoreRoom:
    """Where a node of this user would keep its segments.

    Attributes:
        directory: of segments; it may not exist yet.
        free_bytes, total_bytes: of the shared memory it lies in, which is memory of the machine.
        left_bytes: what nodes of this user hold there, also those that have ended.
        huge_pages: the system's setting for shared memory: `always`, `within_size`, `advise`,
            `never`, `deny` or `force`; None where it has none.
        problem: why nothing can be kept there.
    """

    directory: str
    free_bytes: int
    total_bytes: int
    left_bytes: int
    huge_pages: str | None
    problem: str | None = None


def read_store_room(root: Path = Path("/")) -> StoreRoom:
    """Look at the system's shared memory. Changes nothing."""
    shared = root / "dev/shm"
    directory = shared / f"inlay-{os.geteuid()}" / "store"
    setting = read_text(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled") or ""
    chosen = re.search(r"\[(\w+)\]", setting)
    free = total = left = 0
    problem = None
    try:
        found = os.statvfs(shared)
        free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        if not os.access(shared, os.W_OK):
            problem = f"{shared} cannot be written by this user"
        left = sum(512 * file.stat().st_blocks for file in directory.rglob("*") if file.is_file())
    except OSError as error:
        problem = f"{shared}: {error.strerror}"
    return StoreRoom(
        directory=str(directory),
        free_bytes=free,
        total_bytes=total,
        left_bytes=left,
        huge_pages=chosen[1] if chosen else None,
        problem=problem,
    )
