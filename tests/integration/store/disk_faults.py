"""Faults of the disks of a store's nodes; as those of `faults.py`, of a fleet with disks."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inlay.core.errors import StoreFull, StoreTimeout
from inlay.store import PutOptions
from inlay.store.survey import NodeState
from tests.integration.store.fleet import Fleet, eventually

LOG = "objects.log"
KEYS = 20
FLIPS = 60
BLOCK = 4096
CHUNK = 1 << 20
WRITTEN_WHILE_FULL = 60


def full(fleet: Fleet) -> dict[str, float]:
    """The file system under a node's disk is full for a while."""
    fleet.pause(0, 0.2)
    index = 0 if fleet.has_small_disk else fleet.random.choice(fleet.nodes)
    there = _only_on(fleet, index)
    before = fleet.put_lasting(KEYS, there)
    written = list(before)
    refused = 0
    with _full_disk(fleet, index):
        for _ in range(WRITTEN_WHILE_FULL // KEYS):
            try:
                written += fleet.put_lasting(KEYS, there)
            except StoreFull:  # in memory alone
                refused += 1
        fleet.writer.wait_for_ack(time.monotonic())
        assert fleet.present(before) == before
        assert _state(fleet, index).ready
    took = 0.0
    if _state(fleet, index).disk_bytes == 0:
        # It did not take what had to be written, and was given up: the node goes on without.
        fleet.ledger.lose(written)
        fleet.kill_node(index)
        fleet.start_node(index)
    else:
        took = eventually(lambda: _takes(fleet, there), "a disk that takes objects again")
    fleet.wait_for_replicas()
    return {"refused": refused, "takes_again_s": took}


def damaged(fleet: Fleet) -> dict[str, float]:
    """Bytes of a disk's file are flipped, or its end is cut off, while its node runs or is down;
    some objects are there alone."""
    index = fleet.random.choice(fleet.nodes)
    running = fleet.random.random() < 0.5
    keys = fleet.put_lasting(KEYS, _only_on(fleet, index))
    fleet.pause(0, 0.2)
    fleet.ledger.lose(keys)
    fleet.kill_node(index)
    damage = _truncate if fleet.random.random() < 0.5 else _flip
    log = fleet.disk_folder(index) / LOG
    if not running:
        damage(fleet, log)
    fleet.start_node(index)
    # Not what an earlier run cut off beneath a node that wrote on behind the cut.
    known = fleet.known(keys)
    dropped = fleet.survey().counters["dropped"]
    if running:
        damage(fleet, log)
    found = fleet.present(keys)
    lost = len(keys) - len(found)
    if running:
        assert fleet.survey().counters["dropped"] - dropped >= len(known) - len(found)
    assert _state(fleet, index).ready
    fleet.writer.wait_for_ack(time.monotonic())
    assert fleet.present(found) == found
    fleet.wait_for_replicas()
    return {"running": running, "lost": lost}


def _state(fleet: Fleet, index: int) -> NodeState:
    name = fleet.names[index]
    # One that was killed is remembered for a while beside the one that took its name.
    return max((n for n in fleet.survey().nodes if n.name == name), key=lambda node: node.ready)


def _only_on(fleet: Fleet, index: int) -> PutOptions:
    return PutOptions(preferred_node=fleet.names[index], require_preferred=True, durability="disk")


@contextmanager
def _full_disk(fleet: Fleet, index: int) -> Iterator[None]:
    if not fleet.has_small_disk:
        # No file of the process takes a byte behind what is there.
        pid = fleet.pid_of(index)
        log = fleet.disk_folder(index) / LOG
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (_written(log), before[1]))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        return
    filler = fleet.disk_folder(index) / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(CHUNK)):
            pass
    try:
        yield
    finally:
        filler.unlink()


def _takes(fleet: Fleet, there: PutOptions) -> bool:
    try:
        fleet.put_lasting(1, there)
    except (StoreFull, StoreTimeout):
        return False
    return True


def _truncate(fleet: Fleet, log: Path) -> None:
    os.truncate(log, fleet.random.randrange(_written(log)))


def _flip(fleet: Fleet, log: Path) -> None:
    written = _written(log)
    with log.open("r+b", buffering=0) as file:
        for _ in range(FLIPS):
            at = fleet.random.randrange(written)
            old = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([old[0] ^ (1 << fleet.random.randrange(8))]), at)
        os.fsync(file.fileno())


def _written(log: Path) -> int:
    """Where the last block that is not empty ends; the rest of the file is for later."""
    with log.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        while end > BLOCK:
            begin = max(end - CHUNK, 0)
            content = os.pread(file.fileno(), end - begin, begin).rstrip(b"\0")
            if content:
                return -(-(begin + len(content)) // BLOCK) * BLOCK
            end = begin
    return BLOCK
