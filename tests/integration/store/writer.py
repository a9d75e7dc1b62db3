"""A process that puts, replaces and removes at random, and says what it asked and what it was told.

Arguments: the master, the file of the token, a seed, a name for its keys, "mapped" or "tcp", how
many replicas, and "disks" where half of all is to be on disks, too. Each line on standard output is
one of `Ledger.note`, then the seconds of the monotonic clock. It ends when its standard input does.
"""

import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from inlay.core.errors import StoreError
from inlay.store import PutOptions, Store
from inlay.store.tenants import read_token
from tests.integration.store.ledger import value_of

CALL_S = 10.0
KEPT = 60  # objects of a writer at a time
MUTABLE = 6


class Writer:
    def __init__(self, store: Store, seed: int, name: str, replicas: int, disks: bool) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._name = name
        self._replicas = replicas
        self._disks = disks
        self._next = 0
        self._stored: list[str] = []
        self._versions = [0] * MUTABLE

    def step(self) -> None:
        """One call."""
        draw = self._random.random()
        if len(self._stored) >= KEPT or (draw < 0.1 and self._stored):
            self._remove()
        elif draw < 0.4:
            index = self._random.randrange(MUTABLE)
            self._versions[index] += 1
            # A key that changes is always on a disk, or never.
            item = (f"{self._name}/m{index}", self._versions[index])
            self._put([item], "replace", self._disks and index % 2 == 0)
        elif draw < 0.5 and self._stored:
            self._put([(self._random.choice(self._stored), 0)], "keep", False)
        else:
            count = self._random.randint(1, 6)
            keys = [f"{self._name}/{self._next + n}" for n in range(count)]
            self._next += count
            on_disk = self._disks and self._random.random() < 0.5
            if self._put([(key, 0) for key in keys], "keep", on_disk):
                self._stored += keys

    def _put(
        self, items: list[tuple[str, int]], if_exists: Literal["keep", "replace"], on_disk: bool
    ) -> bool:
        told = "put-on-disk " if on_disk else "put "
        told += " ".join(f"{key}@{version}" for key, version in items)
        options = PutOptions(
            replicas=self._replicas,
            if_exists=if_exists,
            durability="disk" if on_disk else "memory",
        )
        keys = [key for key, _ in items]
        values = [value_of(*item) for item in items]
        return self._tell(
            told, lambda: self._store.put_many(keys, values, options, timeout_s=CALL_S)
        )

    def _remove(self) -> None:
        count = min(len(self._stored), self._random.randint(1, 20))
        keys, self._stored = self._stored[:count], self._stored[count:]
        self._tell("rm " + " ".join(keys), lambda: self._store.remove_many(keys, timeout_s=CALL_S))

    def _tell(self, told: str, call: object) -> bool:
        say(f"? {told}")
        try:
            assert callable(call)
            call()
        except StoreError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            say(f"x {told}")
            return False
        say(f"! {told}")
        return True


def say(line: str) -> None:
    """At once: what was said is there when this process is killed."""
    os.write(1, f"{line} {time.monotonic():.4f}\n".encode())


def main() -> None:
    masters, token_file, seed, name, way, replicas, disks = sys.argv[1:]
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    transports = ["tcp"] if way == "tcp" else None
    with Store.connect(
        masters, token=read_token(Path(token_file)), transports=transports, timeout_s=CALL_S
    ) as store:
        writer = Writer(store, int(seed), name, int(replicas), disks == "disks")
        while not over.is_set():
            writer.step()


if __name__ == "__main__":
    main()
