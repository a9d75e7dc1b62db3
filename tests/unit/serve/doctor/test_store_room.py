"""Where nodes of the store would keep their memory."""

import os
from pathlib import Path

from inlay.serve.doctor.store import read_store_room
from tests.support.system_files import tree


def test_room_and_the_pages_of_shared_memory(tmp_path: Path) -> None:
    held = f"dev/shm/inlay-{os.geteuid()}/store/node-a/x.segment"
    setting = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
    root = tree(tmp_path, {held: "x" * 9000, setting: "always [advise] never deny force\n"})
    room = read_store_room(root)
    assert room.directory == f"{tmp_path}/dev/shm/inlay-{os.geteuid()}/store"
    assert 0 < room.free_bytes <= room.total_bytes
    assert room.left_bytes >= 9000 and room.left_bytes % 512 == 0
    assert (room.huge_pages, room.problem) == ("advise", None)


def test_a_machine_without_shared_memory(tmp_path: Path) -> None:
    room = read_store_room(tmp_path)
    assert room.problem is not None and "dev/shm" in room.problem
    assert (room.free_bytes, room.huge_pages) == (0, None)
