"""Faults of a store's processes, at random times.

Each is a function of a fleet whose processes all run, with a writer and readers at work, and leaves
it so. What it returns are seconds and counts. What was acknowledged is verified by `run`.

    python -m tests.integration.store.faults RECORD.json [RUNS [SEED [FAULT...]]]
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from inlay.store import Store
from tests.integration.store import disk_faults
from tests.integration.store.fleet import Fleet, ReaderThread, eventually, look
from tests.support.directories import running
from tests.support.fault_runs import Outcome, repeat
from tests.support.relay import Relay

NOTICED_S = 2.5
BACK_S = 5.0
READ_KEYS = 20
SLOWEST_READ_S = 1.0  # by cached location, on a machine that is busy with other things

Fault = Callable[[Fleet], Outcome]


def client(fleet: Fleet) -> Outcome:
    """A client is killed while it puts."""
    fleet.pause(0, 0.2)
    fleet.writer.kill()
    fleet.start_writer()
    return {}


def node(fleet: Fleet) -> Outcome:
    """A node that holds data is killed, and comes back: at once, or when it was given up."""
    index = fleet.random.choice(fleet.nodes)
    fleet.pause(0, 0.2)
    fleet.kill_node(index)
    killed = time.monotonic()
    given_up_s = 1.8 * fleet.times.node_timeout_s
    fleet.pause(0, fleet.random.choice([0.1, 0.1, given_up_s]))
    back_s = fleet.writer.wait_for_ack(killed)
    began = time.monotonic()
    fleet.start_node(index)
    ready_s = time.monotonic() - began
    fleet.wait_for_replicas()
    return {"writes_again_s": back_s, "ready_s": ready_s}


def master(fleet: Fleet) -> Outcome:
    """The only master is killed and started again."""
    with _cached_reads(fleet) as seen:
        fleet.pause(0, 0.2)
        index = fleet.kill_master()
        killed = time.monotonic()
        fleet.pause(0, 0.5)
        fleet.start_master(index)
        began = time.monotonic()
        seen["back_s"] = fleet.writer.wait_for_ack(killed)
        seen["back_after_start_s"] = time.monotonic() - began
    assert seen["back_after_start_s"] < BACK_S, seen
    fleet.wait_for_nodes()
    return seen


def standby(fleet: Fleet) -> Outcome:
    """The elected master is killed; the other takes over."""
    with _cached_reads(fleet) as seen:
        fleet.pause(0, 0.5)
        index = fleet.kill_master()
        killed = time.monotonic()
        fleet.wait_for_master()
        seen["noticed_s"] = time.monotonic() - killed
        seen["back_s"] = fleet.writer.wait_for_ack(killed)
    fleet.start_master(index)
    assert seen["noticed_s"] < NOTICED_S + 0.5, seen  # until it listens, and says so
    assert seen["back_s"] < BACK_S, seen
    fleet.wait_for_nodes()
    return seen


def cut(fleet: Fleet) -> Outcome:
    """The network between clients and the master is cut for a while, silently or not."""
    fleet.writer.stop()
    fleet.wait_for_master()
    relay = Relay(fleet.master_address)
    try:
        with Store.connect(relay.address, token=fleet.token, timeout_s=10) as store:
            reader = ReaderThread(store, fleet.ledger, fleet.random.getrandbits(32), timeout_s=10)
            try:
                fleet.start_writer(masters=relay.address)
                keys = fleet.put_lasting(READ_KEYS)
                assert not look(store, fleet.ledger, keys, 10)
                reader.begin_window(keys)
                eventually(lambda: reader.reads >= 100, "reads")
                silently = fleet.random.random() < 0.5
                relay.cut(silently=silently)
                fleet.pause(0, fleet.random.choice([0.3, 3.0]))
                relay.restore()
                back_s = fleet.writer.wait_for_ack(time.monotonic())
                assert back_s < BACK_S, back_s
                assert not reader.failures, reader.failures
                assert reader.longest_s < (NOTICED_S + 0.5 if silently else SLOWEST_READ_S)
                slowest_s = reader.longest_s
            finally:
                reader.stop()
            assert not reader.problems, reader.problems
            fleet.writer.stop()
            fleet.start_writer()
        return {"back_s": back_s, "slowest_read_s": slowest_s}
    finally:
        relay.close()


def everything(fleet: Fleet) -> Outcome:
    """All processes are killed, and started again: memory of the host is all that is left, or
    disks, where nodes keep nothing there."""
    fleet.pause(0, 0.2)
    order: list[Callable[[], object]] = [
        fleet.kill_master,
        fleet.writer.kill,
        *(lambda index=index: fleet.kill_node(index) for index in fleet.nodes),
    ]
    fleet.random.shuffle(order)
    for kill in order:
        kill()
    fleet.lose_memory()
    began = time.monotonic()
    fleet.start_master(0)
    for index in fleet.nodes:
        fleet.start_node(index, wait=False)
    fleet.wait_for_nodes()
    ready_s = time.monotonic() - began
    fleet.start_writer()
    return {"ready_s": ready_s}


@contextmanager
def _cached_reads(fleet: Fleet) -> Iterator[Outcome]:
    """Objects that never change are read without a break, by locations that are known."""
    keys = fleet.put_lasting(READ_KEYS)
    fleet.verify()
    seen: Outcome = {}
    for reader in fleet.readers:
        reader.begin_window(keys)
    eventually(lambda: all(one.reads >= 100 for one in fleet.readers), "reads")
    yield seen
    seen["slowest_read_s"] = max(reader.longest_s for reader in fleet.readers)
    failures = [failure for reader in fleet.readers for failure in reader.failures]
    for reader in fleet.readers:
        reader.begin_window([])
    assert not failures, failures[:5]
    assert seen["slowest_read_s"] < SLOWEST_READ_S, seen


ALONE: dict[str, Fault] = {one.__name__: one for one in (client, node, master, cut, everything)}
ELECTED: dict[str, Fault] = {"standby": standby}
DISKS: dict[str, Fault] = {
    "disk-node": node,
    "disk-everything": everything,
    "disk-full": disk_faults.full,
    "disk-damaged": disk_faults.damaged,
}


def run(fleet: Fleet, fault: Fault, seed: int) -> Outcome:
    """One fault, and whether nothing was lost by it."""
    fleet.random = random.Random(seed)
    fleet.start_writer()
    outcome = fault(fleet)
    fleet.writer.stop()
    fleet.verify()
    fleet.clear()
    return outcome


def main() -> None:
    record = Path(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    seeds = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else None)
    only = sys.argv[4:] or [*ALONE, *ELECTED, *DISKS]
    found: list[dict[str, object]] = []
    failed = False
    for faults in (ALONE, ELECTED, DISKS):
        wanted = [name for name in faults if name in only]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            service = None
            if faults is ELECTED:
                service = running("etcd", Path(folder))
            try:
                etcd = f"{service.__enter__().url}/faults" if service else None
                for name in wanted:
                    found.append(_repeat(name, faults[name], Path(folder), etcd, runs, seeds))
                    failed |= not found[-1]["passed"]
                    record.write_text(json.dumps(found, indent=2) + "\n")
            finally:
                if service:
                    service.__exit__(None, None, None)
    sys.exit(failed)


def _repeat(
    name: str, fault: Fault, folder: Path, etcd: str | None, runs: int, seeds: random.Random
) -> dict[str, object]:
    acknowledged = 0
    load_seed = seeds.getrandbits(32)

    @contextmanager
    def once() -> Iterator[Callable[[int], Outcome]]:
        nonlocal acknowledged
        with Fleet(folder, load_seed, etcd=etcd, disks=name in DISKS) as fleet:
            try:
                yield lambda seed: run(fleet, fault, seed)
            finally:
                acknowledged = fleet.ledger.acknowledged

    told = repeat(name, once(), runs, seeds)
    return {**told, "acknowledged": acknowledged}


if __name__ == "__main__":
    main()
