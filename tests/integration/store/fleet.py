"""A store of real processes that may be killed, writers that go on meanwhile, and readers that look
at every byte."""

import os
import random
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.core.errors import StoreError
from inlay.store import PutOptions, Store
from inlay.store.administration import Administration
from inlay.store.master_server import MasterPolicy
from inlay.store.survey import Survey
from inlay.store.tenants import read_token
from tests.integration.store.ledger import Bounds, Ledger, problem_of, value_of
from tests.support.directories import free_port
from tests.support.store import StoreProcess

ROOT = Path(__file__).parents[3]
MASTER = r"master at (\S+), epoch (\d+)"
SETTLE_S = 30.0
READ_S = 15.0
NOTED_S = 0.3
DISK = "64MiB"
SMALL_DISK = "48m"  # of the file system under one, where it may be mounted
TWICE = PutOptions(replicas=2)


@dataclass(frozen=True)
class Times:
    """As of `MasterPolicy`."""

    location_ttl_s: float
    node_timeout_s: float


REAL = Times(MasterPolicy.location_ttl_s, MasterPolicy.node_timeout_s)
SHORT = Times(0.4, 1.5)


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = SETTLE_S) -> float:
    """Wait for it; how long it took."""
    began = time.monotonic()
    while True:
        with suppress(StoreError):
            if condition():
                return time.monotonic() - began
        assert time.monotonic() < began + timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


class WriterProcess:
    """`writer.py`, and what it said.

    Attributes:
        acknowledged_s: when the last call that it was told the end of had been asked for.
    """

    def __init__(self, ledger: Ledger, errors: Path, *args: str) -> None:
        self._ledger = ledger
        self._asked_s = 0.0
        self.acknowledged_s = 0.0
        self._errors = errors.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.store.writer", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            if not raw.endswith(b"\n"):
                return  # it was killed in the middle of a word
            line, _, at = raw.decode().strip().rpartition(" ")
            self._ledger.note(line)
            if line.startswith("?"):
                self._asked_s = float(at)
            elif line.startswith("!"):
                self.acknowledged_s = self._asked_s

    def wait_for_ack(self, since_s: float = 0.0) -> float:
        """Wait for the end of a call that was asked for after that; how long that took."""
        eventually(lambda: self.acknowledged_s > since_s or self.ended, "a put")
        assert self.acknowledged_s > since_s, f"the writer ended: {self.errors}"
        return time.monotonic() - since_s

    @property
    def ended(self) -> bool:
        """Whether it did, by itself."""
        return self._process.poll() is not None

    @property
    def errors(self) -> str:
        """What it said on standard error."""
        return Path(str(self._errors.name)).read_text()

    def kill(self) -> None:
        """kill -9. What it had said is noted."""
        self._process.kill()
        self._finish()

    def stop(self) -> None:
        """Let it end its call, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(SETTLE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the writer hangs: {self.errors}") from None
        self._finish()
        assert code == 0, self.errors

    def _finish(self) -> None:
        self._process.wait()
        self._reader.join(5)
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


class ReaderThread:
    """Reads all the time, and compares.

    Attributes:
        problems: what may not be.
        longest_s: of a read, since `begin_window`.
        failures: reads of that window that raised.
    """

    def __init__(self, store: Store, ledger: Ledger, seed: int, *, timeout_s: float) -> None:
        self._store = store
        self._ledger = ledger
        self._random = random.Random(seed)
        self._timeout_s = timeout_s
        self._only: list[str] = []
        self._stopping = threading.Event()
        self.problems: list[str] = []
        self.reads = 0
        self.longest_s = 0.0
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin_window(self, only: list[str]) -> None:
        """Count from now on; read these keys alone, or, without any, all."""
        self._only = only
        self.longest_s, self.failures, self.reads = 0.0, [], 0

    def stop(self) -> None:
        """And wait for it."""
        self._stopping.set()
        self._thread.join(SETTLE_S)
        assert not self._thread.is_alive(), "a read hangs"

    def _run(self) -> None:
        while not self._stopping.is_set():
            keys = self._only or self._ledger.keys()
            if not keys:
                time.sleep(0.01)
                continue
            began = time.monotonic()
            try:
                self.problems += look(
                    self._store, self._ledger, [self._random.choice(keys)], self._timeout_s
                )
            except StoreError as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            except Exception as error:  # a thread has nobody to raise to
                self.problems.append(f"{type(error).__name__}: {error}")
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.reads += 1
            time.sleep(0.001)


def look(store: Store, ledger: Ledger, keys: list[str], timeout_s: float) -> list[str]:
    """Read these, and say what may not be."""
    before = {key: bounds for key in keys if (bounds := ledger.bounds(key)) is not None}
    values = store.get_many(list(before), timeout_s=timeout_s)
    found = dict(zip(before, values, strict=True))
    if not any(_problem(ledger, key, before[key], value) for key, value in found.items()):
        return []
    # What the writer asked for just now may be on its way to the ledger.
    time.sleep(NOTED_S)
    problems = [_problem(ledger, key, before[key], value) for key, value in found.items()]
    return [problem for problem in problems if problem]


def _problem(ledger: Ledger, key: str, before: Bounds, value: bytes | None) -> str | None:
    now = ledger.bounds(key)
    if now is None:
        return None
    if value is None:
        return None if before.absent or now.absent else f"{key}: acknowledged, and not there"
    if before.gone:
        return f"{key}: removed, and there"
    return problem_of(key, value, before.low, now.high)


def _serves(log: str) -> bool:
    return log.rfind("master at ") > log.rfind("master no more")


class Fleet:
    """Masters, nodes, and one writer; nothing is left of it after `close`.

    Args:
        etcd: where masters are elected, two of them; None: one stands alone.
        disks: nodes have one each, and keep no memory when they end.
        times: that the master waits.

    Attributes:
        has_small_disk: the first node's is a file system of its own, which can be filled.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        etcd: str | None = None,
        nodes: int = 3,
        disks: bool = False,
        times: Times = REAL,
    ) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.ledger = Ledger()
        self._token_file = folder / "token"
        self._token_file.touch(mode=0o600)
        self._token_file.write_bytes(os.urandom(32))
        self.token = read_token(self._token_file)
        self._etcd = etcd
        self._listen = [f"127.0.0.1:{free_port()}" for _ in range(1 if etcd is None else 2)]
        self.masters = etcd or self._listen[0]
        self._tag = f"fleet-{os.getpid()}-{secrets.token_hex(3)}"
        self.names = [f"{self._tag}-{index}" for index in range(nodes)]
        self.disks = disks
        self.times = times
        self.has_small_disk = False
        self._nodes: dict[int, StoreProcess] = {}
        self._masters: dict[int, StoreProcess] = {}
        self._writers = 0
        self._lasting = 0
        self._writer: WriterProcess | None = None
        self._stores: list[Store] = []
        self.readers: list[ReaderThread] = []
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise

    def _start_all(self) -> None:
        if self.disks:
            self.has_small_disk = self._mount_small_disk()
        for index in range(len(self._listen)):
            self.start_master(index)
        self.wait_for_master()
        for index in range(len(self.names)):
            self.start_node(index, wait=False)
        self.wait_for_nodes()
        for transports in (None, ["tcp"]):
            store = Store.connect(self.masters, token=self.token, transports=transports)
            self._stores.append(store)
            seed = self.random.getrandbits(32)
            self.readers.append(ReaderThread(store, self.ledger, seed, timeout_s=READ_S))
        self.administration = Administration(self.masters, self.token)

    # --- masters ---

    def start_master(self, index: int) -> None:
        """Start it, and do not wait."""
        args = ["master", "--listen", self._listen[index], "--admin", "none"]
        args += ["--set", "client_timeout_s=1", "--token-file", str(self._token_file)]
        args += ["--set", f"location_ttl_s={self.times.location_ttl_s}"]
        args += ["--set", f"node_timeout_s={self.times.node_timeout_s}"]
        if self._etcd is not None:
            args += ["--etcd", self._etcd]
        self._masters[index] = StoreProcess(self.folder, *args)

    def wait_for_master(self) -> int:
        """Which one serves."""
        found: list[int] = []

        def look_at_logs() -> bool:
            found[:] = [i for i, one in self._masters.items() if _serves(one.log)]
            return bool(found)

        eventually(look_at_logs, "a master")
        return found[0]

    @property
    def master_address(self) -> str:
        """Where the one listens that serves."""
        return self._listen[self.wait_for_master()]

    def kill_master(self) -> int:
        """kill -9 the one that serves; which it was."""
        index = self.wait_for_master()
        self._masters.pop(index).kill()
        return index

    # --- nodes ---

    @property
    def nodes(self) -> range:
        """Their indices."""
        return range(len(self.names))

    def start_node(self, index: int, *, wait: bool = True) -> None:
        """Start it, and wait until it serves."""
        self._nodes[index] = StoreProcess(
            self.folder, "node", "--master", self.masters, "--name", self.names[index],
            "--memory", "64MiB", "--failure-domain", f"d{index}",
            "--token-file", str(self._token_file), *self._disk_of(index),
        )  # fmt: skip
        if wait:
            self.wait_for_nodes()

    def _disk_of(self, index: int) -> list[str]:
        if not self.disks:
            return []
        return ["--disk", f"{self.disk_folder(index)}:{DISK}", "--forget"]

    def disk_folder(self, index: int) -> Path:
        """Where a node's disk is."""
        return self.folder / f"{self.names[index]}.disk"

    def _mount_small_disk(self) -> bool:
        folder = self.disk_folder(0)
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK},mode=700", "inlay-test", folder]
        return subprocess.run(mount, capture_output=True).returncode == 0

    def pid_of(self, index: int) -> int:
        """Of a node's process."""
        return self._nodes[index].pid

    def kill_node(self, index: int) -> None:
        """kill -9."""
        self._nodes.pop(index).kill()

    def lose_memory(self) -> None:
        """All nodes were killed: what they kept in memory alone is lost where they keep nothing."""
        if self.disks:
            self.ledger.lose_memory()

    def wait_for_nodes(self) -> None:
        """Until all that were started say so, and the master knows what they hold."""
        for process in self._nodes.values():
            process.wait_for("objects found")
        with Administration(self.masters, self.token) as administration:
            wanted = {self.names[index] for index in self._nodes}

            def ready() -> bool:
                found = administration.survey()
                names = {node.name for node in found.nodes if node.ready}
                return wanted <= names and not found.recovering

            eventually(ready, "all nodes ready")

    def survey(self) -> Survey:
        """Of the master now."""
        return self.administration.survey()

    # --- the writer ---

    @property
    def writer(self) -> WriterProcess:
        """The one that writes now."""
        assert self._writer is not None
        return self._writer

    def start_writer(self, *, masters: str | None = None, replicas: int = 2) -> WriterProcess:
        """One more, and wait until something is stored."""
        self._writers += 1
        self._writer = WriterProcess(
            self.ledger,
            self.folder / "writers.log",
            masters or self.masters,
            str(self._token_file),
            str(self.random.getrandbits(32)),
            f"w{self._writers}",
            self.random.choice(["mapped", "tcp"]),
            str(replicas),
            "disks" if self.disks else "",
        )
        self._writer.wait_for_ack()
        return self._writer

    # --- what has to hold ---

    def pause(self, low_s: float, high_s: float) -> None:
        """A random while."""
        time.sleep(self.random.uniform(low_s, high_s))

    def put_lasting(self, count: int, options: PutOptions = TWICE) -> list[str]:
        """Objects that nobody removes before `clear`; their keys."""
        keys = [f"lasting/{self._lasting + n}" for n in range(count)]
        self._lasting += count
        told = "put-on-disk " if options.durability == "disk" else "put "
        told += " ".join(f"{key}@0" for key in keys)
        self.ledger.note(f"? {told}")
        values = [value_of(key, 0) for key in keys]
        try:
            self._stores[0].put_many(keys, values, options, timeout_s=READ_S)
        except StoreError:
            self.ledger.note(f"x {told}")
            raise
        self.ledger.note(f"! {told}")
        return keys

    def known(self, keys: list[str]) -> list[str]:
        """Those that the master says are there; none is read."""
        with Store.connect(self.masters, token=self.token) as store:
            told = store.exists_many(keys)
        return [key for key, is_there in zip(keys, told, strict=True) if is_there]

    def present(self, keys: list[str]) -> list[str]:
        """Those that one who knows no locations can read; what is read is right, and the store says
        so of the others."""
        with Store.connect(self.masters, token=self.token) as store:
            read = dict(zip(keys, store.get_many(keys, timeout_s=READ_S), strict=True))
            told = dict(zip(keys, store.exists_many(keys), strict=True))
        wrong = [
            f"{key}: {value!r:.80}, and there: {told[key]}"
            for key, value in read.items()
            if value not in (None, value_of(key, 0)) or told[key] == (value is None)
        ]
        assert not wrong, self.explain(wrong)
        return [key for key, value in read.items() if value is not None]

    def explain(self, problems: list[str]) -> str:
        """What the master says of the keys that they begin with."""
        keys = dict.fromkeys(problem.partition(":")[0] for problem in problems[:20])
        told = [f"{key}: {self.administration.explain(key)}" for key in list(keys)[:5]]
        told += [f"{name} {count}" for name, count in self.survey().counters.items() if count]
        return "\n".join(problems[:20] + told)

    def verify(self) -> None:
        """Everything that was acknowledged is there, and right, on both ways to it."""
        keys = self.ledger.keys()
        problems = [problem for reader in self.readers for problem in reader.problems]
        for store in self._stores:
            for begin in range(0, len(keys), 64):
                some = keys[begin : begin + 64]
                try:
                    problems += look(store, self.ledger, some, READ_S)
                except StoreError as error:
                    problems += [
                        f"{key}: {type(error).__name__}: {error}"
                        for key in some
                        if key in str(error)
                    ] or [f": {error}"]
        assert not problems, self.explain(problems)
        assert self.survey().counters["evicted"] == 0, "objects were evicted: the pool is too small"

    def wait_for_replicas(self) -> None:
        """Until each object has as many in memory as it is to have."""

        def whole(key: str) -> bool:
            if (bounds := self.ledger.bounds(key)) is None or bounds.absent:
                return True
            stat = self._stores[0].stat(key)
            return sum(tier == "memory" for _, tier in stat.replicas) >= stat.wanted_replicas

        for key in self.ledger.stored_keys():
            try:
                eventually(lambda key=key: whole(key), f"replicas of {key}")
            except AssertionError as error:
                raise AssertionError(self.explain([f"{key}: {error}"])) from None

    def clear(self) -> None:
        """Remove all objects, and what is remembered of them."""
        keys = self.ledger.keys()
        self.ledger.note("? rm " + " ".join(keys))
        for begin in range(0, len(keys), 256):
            self._stores[0].remove_many(keys[begin : begin + 256], timeout_s=READ_S)
        self.ledger.forget(keys)

    def close(self) -> None:
        """Kill everything."""
        for reader in self.readers:
            reader.stop()
        if self._writer is not None:
            self._writer.kill()
        for process in (*self._nodes.values(), *self._masters.values()):
            process.close()
        for store in self._stores:
            store.close()
        with suppress(AttributeError):
            self.administration.close()
        if self.has_small_disk:
            subprocess.run(["umount", "-l", self.disk_folder(0)], check=True)
        for name in self.names:
            shutil.rmtree(f"/dev/shm/inlay-{os.geteuid()}/store/{name}", ignore_errors=True)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
