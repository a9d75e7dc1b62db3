"""A store at length and at size: operations without end, an index built again, a large node.

python -m tests.integration.store.soak RECORD.json [OPERATIONS [SEED]]
"""

import json
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from inlay.store import Contribution, Store, _backend
from inlay.store.administration import Administration
from inlay.store.survey import read_survey
from inlay.store.tenants import read_token
from tests.integration.store.fleet import MASTER, eventually
from tests.support.directories import free_port
from tests.support.store import StoreProcess

BATCH = 256
SIZES = (0, 500, 4096, 4096, 9216, 36_864, 36_864, 147_456)  # a few, as KV blocks have
MOST_FRAGMENTED = 0.1
MOST_GROWTH = 0.05
JOIN_S = 1.0
BACK_S = 5.0
OBJECTS_PER_S = 1e6

Found = dict[str, float | int | bool]


def resident_bytes() -> int:
    """Of this process, without the memory of segments."""
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssFile")) * 1024


class Churn:
    """Random batches of calls on a full store; whatever is read is compared."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        draw = np.random.default_rng(seed)
        self._noise = memoryview(draw.integers(0, 256, max(SIZES) + 65_536, np.uint8).tobytes())
        self._next = 0
        self._buffers = [bytearray(max(SIZES)) for _ in range(BATCH)]
        self.counts = dict.fromkeys(("put", "found", "missed", "exists", "removed"), 0)

    def value_of(self, key: int) -> memoryview:
        """A part of the noise that the key alone chooses."""
        begin = key * 40_503 % 65_536
        return self._noise[begin : begin + SIZES[key * 2_654_435_761 % (1 << 32) >> 29]]

    def step(self) -> int:
        """One batch; how many operations that were."""
        draw = self._random.random()
        if draw < 0.3 or self._next < BATCH:
            return self._put()
        keys = self._some_keys()
        names = [f"object {key}" for key in keys]
        if draw < 0.6:
            return self._get(keys, names)
        if draw < 0.95:
            self.counts["exists"] += sum(self._store.exists_many(names))
        else:
            self.counts["removed"] += sum(self._store.remove_many(names))
        return BATCH

    def _some_keys(self) -> list[int]:
        """More of the latest than of others."""
        return [
            max(0, self._next - 1 - int(self._random.paretovariate(0.4)) % self._next)
            for _ in range(BATCH)
        ]

    def _put(self) -> int:
        keys = range(self._next, self._next + BATCH)
        self._next += BATCH
        self._store.put_many(
            [f"object {key}" for key in keys], [self.value_of(key) for key in keys]
        )
        self.counts["put"] += BATCH
        return BATCH

    def _get(self, keys: list[int], names: list[str]) -> int:
        sizes = self._store.get_into_many(names, self._buffers)
        for key, buffer, size in zip(keys, self._buffers, sizes, strict=True):
            if size is None:
                self.counts["missed"] += 1
                continue
            self.counts["found"] += 1
            if memoryview(buffer)[:size] != self.value_of(key):
                raise AssertionError(f"object {key}: wrong bytes")
        return BATCH


def operations(count: int, seed: int, *, memory: str = "256MiB") -> Found:
    """So many operations on one store that is full nearly all the time."""
    samples: list[int] = []
    of_free: list[float] = []
    of_all: list[float] = []
    with Store.embedded(memory=memory, timeout_s=30) as store:
        churn = Churn(store, seed)
        done, began = 0, time.monotonic()
        for quarter in range(20):
            while done < count * (quarter + 1) / 20:
                done += churn.step()
            survey = read_survey(_backend.survey(store._link, 5.0))
            (node,) = survey.nodes
            free = node.memory_bytes - node.memory_used_bytes
            samples.append(resident_bytes())
            of_free.append(node.fragmentation)
            of_all.append(node.fragmentation * free / node.memory_bytes)
        seconds = time.monotonic() - began
        evicted = survey.counters["evicted"]
    # From the moment on when it is full, the policy's memory of what it evicted included.
    growth = max(samples[10:]) / samples[9] - 1
    return {
        "operations": done,
        "seconds": round(seconds, 1),
        "operations_per_s": round(done / seconds),
        **churn.counts,
        "evicted": evicted,
        "resident_bytes_half": samples[9],
        "resident_bytes_end": samples[-1],
        "resident_growth": round(growth, 4),
        "fragmentation": round(max(of_all), 4),
        "fragmentation_of_free": round(max(of_free), 4),
        "passed": evicted > 0 and growth < MOST_GROWTH and max(of_all) < MOST_FRAGMENTED,
    }


def segments_of(node: str | None) -> Path:
    """Where a node has its memory."""
    return Path(f"/dev/shm/inlay-{os.geteuid()}/store/{node}")


def rebuild(objects: int) -> Found:
    """A master is killed that knows so many objects, and the next one learns of them."""
    name = f"rebuild-{os.getpid()}-{secrets.token_hex(3)}"
    listen = f"127.0.0.1:{free_port()}"
    folder = Path(tempfile.mkdtemp())
    token_file = folder / "token"
    token_file.touch(mode=0o600)
    token_file.write_bytes(os.urandom(32))
    token = read_token(token_file)
    command = ["master", "--listen", listen, "--admin", "none", "--token-file", str(token_file)]
    processes: list[StoreProcess] = []

    def start(*args: str) -> StoreProcess:
        processes.append(StoreProcess(folder, *args))
        return processes[-1]

    try:
        first = start(*command)
        first.wait_for(MASTER)
        node = ["node", "--master", listen, "--name", name, "--token-file", str(token_file)]
        start(*node, "--memory", f"{objects * 320 + (64 << 20)}").wait_for("objects found")
        with (
            Store.connect(listen, token=token, timeout_s=30) as store,
            Administration(listen, token) as administration,
        ):
            value = os.urandom(64)
            for begin in range(0, objects, 4096):
                keys = [f"{n:032x}" for n in range(begin, min(begin + 4096, objects))]
                store.put_many(keys, [value] * len(keys))
            known = administration.survey().objects
            first.kill()
            second = start(*command)
            second.wait_for(MASTER)
            began = time.monotonic()
            probe = [f"{n:032x}" for n in range(0, objects, max(objects // 100, 1))]
            lookups_s = eventually(lambda: all(store.exists_many(probe)), "look-ups")
            puts_s = eventually(lambda: store.put("after", b"x", timeout_s=1).stored, "puts")
            eventually(lambda: administration.survey().objects > known, "all objects")
            whole_s = time.monotonic() - began
            survey = administration.survey()
        return {
            "objects": known,
            "lookups_back_s": round(lookups_s, 3),
            "puts_back_s": round(lookups_s + puts_s, 3),
            "objects_per_s": round(known / whole_s),
            "master_bytes_per_object": round(survey.counters["memory_bytes"] / known, 1),
            "passed": lookups_s + puts_s < BACK_S and survey.objects == known + 1,
        }
    finally:
        for process in reversed(processes):
            process.close()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(segments_of(name), ignore_errors=True)


def join(gib: int) -> Found:
    """A node of so much memory joins, and serves."""
    listen = f"127.0.0.1:{free_port()}"
    token = os.urandom(32)
    master = _backend.MasterServer(
        listen, [("default", token)], epoch=1, expected_nodes=[], location_ttl_ms=2000,
        client_timeout_ms=10_000, node_timeout_ms=2500, recover_ms=0, high_watermark=0.95,
        low_watermark=0.92, eviction="", serve_until_s=float("inf"),
    )  # fmt: skip
    try:
        began = time.monotonic()
        with Store.connect(
            listen, token=token, contribute=Contribution(memory=gib << 30), timeout_s=10
        ) as store:
            joined_s = time.monotonic() - began
            store.put("key", b"value")
            assert store.get("key") == b"value"
            served_s = time.monotonic() - began
            # Meanwhile the system gives it the rest of its memory.
            (segment,) = segments_of(store.node).glob("*.segment")
            eventually(
                lambda: segment.stat().st_blocks * 512 >= gib << 30, "all of its memory", 120
            )
            filled_s = time.monotonic() - began
    finally:
        master.stop()
    return {
        "gib": gib,
        "joined_s": round(joined_s, 3),
        "served_s": round(served_s, 3),
        "filled_s": round(filled_s, 3),
        "passed": served_s < JOIN_S,
    }


def main() -> None:
    record = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000_000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().getrandbits(32)
    steps: list[tuple[str, Callable[[], Found]]] = [
        ("operations", lambda: operations(count, seed)),
        ("rebuild", lambda: rebuild(max(count // 20, 1000))),
        ("join", lambda: join(8)),
    ]
    found: list[dict[str, object]] = []
    for name, step in steps:
        one: dict[str, object] = {"soak": name, "seed": seed}
        try:
            one |= step()
        except Exception as error:  # told in the record
            one |= {"passed": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(one), flush=True)
        found.append(one)
        record.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(not all(one["passed"] for one in found))


if __name__ == "__main__":
    main()
