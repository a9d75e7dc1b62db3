"""Moves whole pages between a pool and a store, on threads of its own.

A block is one object, its page as it lies in the pool: page-first, so one range, and nothing is
reshaped. The names of blocks depend on the KV format, so a page of another format has another
name; its size is compared all the same.

Threads, not the step loop, wait for the store; bytes move without the GIL, in batches.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from inlay.core.block_hash import store_key
from inlay.core.errors import InlayError, KeyNotFound
from inlay.core.kv_format import KvFormat
from inlay.core.messages import Tier

log = logging.getLogger(__name__)


class KvStore(Protocol):
    """The part of `inlay.store.Store` that a cache uses."""

    def exists_many(self, keys: Sequence[str]) -> list[bool]:
        """Which keys there are."""

    def get_into_many(self, keys: Sequence[str], buffers: Sequence[Any]) -> Sequence[object]:
        """Bytes read per key; None for a miss, an exception for what could not be read."""

    def put_many(
        self,
        keys: Sequence[str],
        values: Sequence[Any],
        *,
        parents: Sequence[str | None],
        recompute_us: int,
    ) -> Any:
        """Put objects; those that are there stay as they are.

        Args:
            keys, values: of the objects.
            parents: key of the block before each; None for a first block.
            recompute_us: to compute one of them again when the one before it is there; 0: unknown.
        """

    def stat(self, key: str) -> Any:
        """Of an object: `replicas`, the node and tier ("memory" or "disk") of each."""

    @property
    def node(self) -> str | None:
        """Name of the node that this process contributes."""

    def close(self) -> None:
        """Let go of the store."""


@dataclass(slots=True, eq=False)
class IoJob:
    """One batch under way.

    Attributes:
        kind: `find` asks for the leading run of blocks that are there; `load` and `save` move
            pages.
        seconds: what it took, without waiting for its turn.
        found: of a `find`: how many blocks the run has.
        good: of a `load`: which pages were filled; others hold no one knows what.
        tier: of a `load`: where the first of its blocks was.
        error: why nothing of it was done.
        parents: of a `save`: digests of the blocks before them, `ROOT` for none.
        recompute_us: of a `save`: as `KvStore.put_many` takes it.
    """

    kind: Literal["find", "load", "save"]
    digests: Sequence[bytes]
    page_ids: Sequence[int] = ()
    seconds: float = 0.0
    found: int = 0
    good: Sequence[bool] = ()
    tier: Tier = "store"
    error: Exception | None = None
    parents: Sequence[bytes] = ()
    recompute_us: int = 0
    future: "Future[None] | None" = None

    def cancel(self) -> bool:
        """Take it back if it has not begun."""
        assert self.future is not None
        return self.future.cancel()


class BlockStore:
    """See the module.

    Args:
        store: where objects are.
        kv_format: of the pool's pages; gives their keys and size.
        pages: the memory of each page id, to be read and written by the store.
        settle: called before pages are read; waits until what computes has written them.
        on_done: called by a thread whenever `finished` has a new entry.

    Attributes:
        finished: jobs that are over, for whoever started them to take. Cancelled ones never come.
    """

    def __init__(
        self,
        store: KvStore,
        *,
        kv_format: KvFormat,
        pages: Sequence[Any],
        settle: Callable[[], None] | None = None,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._format = kv_format
        self._pages = pages
        self._settle = settle
        self._on_done = on_done
        self._changed = threading.Condition()
        self.finished: deque[IoJob] = deque()
        # One thread each: a look-up must not wait for bytes, nor a load for a save.
        self._threads = {
            kind: ThreadPoolExecutor(1, thread_name_prefix=f"inlay-kv-{kind}")
            for kind in ("find", "load", "save")
        }

    def find(self, digests: Sequence[bytes]) -> IoJob:
        """Ask how many leading blocks of a chain are there."""
        return self._start(IoJob("find", digests))

    def load(self, digests: Sequence[bytes], page_ids: Sequence[int]) -> IoJob:
        """Fill pages. The caller keeps them from other use until the job is over."""
        return self._start(IoJob("load", digests, page_ids))

    def save(
        self,
        digests: Sequence[bytes],
        page_ids: Sequence[int],
        parents: Sequence[bytes],
        recompute_us: int = 0,
    ) -> IoJob:
        """Copy pages. The caller keeps them as they are until the job is over.

        Args:
            digests, page_ids: of the blocks, parents before their children.
            parents: digests of the blocks before them, `ROOT` for none.
            recompute_us: to compute one of them again; 0: unknown.
        """
        job = IoJob("save", digests, page_ids, parents=parents, recompute_us=recompute_us)
        return self._start(job)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a job is over; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self.finished), timeout_s)

    def close(self) -> None:
        """Wait for what is under way, drop the rest, and close the store."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)
        self._store.close()

    def _start(self, job: IoJob) -> IoJob:
        job.future = self._threads[job.kind].submit(self._run, job)
        return job

    def _run(self, job: IoJob) -> None:
        started_s = time.perf_counter()
        try:
            match job.kind:
                case "find":
                    job.found = self._find(job.digests)
                case "load":
                    keys = self._keys(job.digests)
                    job.tier = self._tier(keys[0])
                    job.good = self._load(keys, [self._pages[page] for page in job.page_ids])
                case "save":
                    self._save(job)
        except Exception as error:
            if not isinstance(error, InlayError):
                log.exception("a %s of %d blocks failed", job.kind, len(job.digests))
            job.error = error
        job.seconds = time.perf_counter() - started_s
        with self._changed:
            self.finished.append(job)
            self._changed.notify_all()
        if self._on_done is not None:
            self._on_done()

    def _keys(self, digests: Sequence[bytes]) -> list[str]:
        rank, degree = self._format.tp_rank, self._format.tp_degree
        return [store_key(digest, rank, degree) for digest in digests]

    def _find(self, digests: Sequence[bytes]) -> int:
        there = self._store.exists_many(self._keys(digests))
        return there.index(False) if False in there else len(there)

    def _tier(self, key: str) -> Tier:
        """Where the nearest copy of an object is, as seen from this instance."""
        try:
            replicas = self._store.stat(key).replicas
        except KeyNotFound:
            return "store"  # nothing will come of it
        own = {tier for node, tier in replicas if node == self._store.node}
        return "host" if "memory" in own else "disk" if own else "store"

    def _load(self, keys: Sequence[str], buffers: Sequence[Any]) -> list[bool]:
        # An object of another size than a page is none of ours.
        sizes = self._store.get_into_many(keys, buffers)
        return [size == self._format.page_bytes for size in sizes]

    def _save(self, job: IoJob) -> None:
        if self._settle is not None:
            self._settle()
        pages = [self._pages[page_id] for page_id in job.page_ids]
        parents = [
            key if any(digest) else None
            for digest, key in zip(job.parents, self._keys(job.parents), strict=True)
        ]
        self._store.put_many(
            self._keys(job.digests), pages, parents=parents, recompute_us=job.recompute_us
        )
