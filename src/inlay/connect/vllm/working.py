"""The workers' half: moves blocks between vLLM's cache, the store and other instances.

Bytes move on threads of this module, while the model computes. A block on its way to the store
was copied to host memory as each layer was computed, so vLLM may reuse its pages at once.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from inlay.connect.shared_store import SharedStore
from inlay.connect.vllm.pages import KvPages, Staging
from inlay.connect.vllm.peers import PeerPages
from inlay.connect.vllm.settings import ConnectorSettings
from inlay.connect.vllm.steps import BlockFetch, BlockLoad, BlockSave, StepWork
from inlay.core.block_hash import Namespace, store_key
from inlay.core.errors import InlayError
from inlay.core.units import parse_bytes
from inlay.store import PutOptions, Store

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_BATCH = 64  # blocks of one call to the store
# Of fetches several: an instance that does not answer holds up a thread until it is given up.
_THREADS = {"load": 1, "save": 1, "fetch": 4}
_OPTIONS = PutOptions()


class Working:
    """See the module.

    Args:
        settings: of the connector.
        namespace: of the instance, with this worker's rank in `kv_format`.
        store: shared with other engines; None: none.
        tensors: vLLM's KV cache, by layer.
        num_blocks: in each tensor.

    Attributes:
        counts: blocks, by what became of them.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        namespace: Namespace,
        store: SharedStore | None,
        tensors: Mapping[str, "torch.Tensor"],
        num_blocks: int,
    ) -> None:
        self._format = namespace.kv_format
        self._store = store
        self._pages = KvPages(tensors, num_blocks)
        self._staging = None
        if store is not None:
            self._staging = Staging(self._pages, parse_bytes(settings.staging))
        self.peers = PeerPages(settings, self._pages)
        self._threads = {
            kind: ThreadPoolExecutor(threads, thread_name_prefix=f"inlay-{kind}")
            for kind, threads in _THREADS.items()
        }
        self._lock = threading.Lock()
        self._received: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._held: dict[str, float] = {}
        self._over: set[str] = set()
        self._taken: set[str] = set()
        self.counts = dict.fromkeys(
            ("saved", "not_saved", "loaded", "not_loaded", "fetched", "not_fetched", "expired"), 0
        )
        self._saving: _Saving | None = None

    def begin(self, work: StepWork) -> None:
        """Start what a step asks for; before its forward pass."""
        now = time.monotonic()
        with self._lock:
            self._held |= {one: now + seconds for one, seconds in work.holds.items()}
        for load in work.loads:
            self._start("load", self._load, load)
        for fetch in work.fetches:
            self._start("fetch", self._fetch, fetch)
        self._saving = None
        if work.saves.block_ids and self._staging is not None:
            self._saving = self._begin_saving(work.saves, self._staging)

    def layer_done(self, name: str) -> None:
        """One layer of this step is in the cache; its new blocks are copied."""
        if self._saving is not None:
            self._saving.copy(name)

    def end(self) -> None:
        """The step has run: what it completed goes to the store, behind this call."""
        saving, self._saving = self._saving, None
        if saving is not None:
            ready = saving.finish(self._pages.layers)
            self._start("save", self._save, saving, ready)

    def finished(self, over: Iterable[str]) -> tuple[set[str], set[str]]:
        """Requests whose blocks were taken by another instance, or not in time; and those whose
        blocks have come.

        Args:
            over: requests that have ended here.
        """
        now = time.monotonic()
        with self._lock:
            self._taken |= self.peers.taken() & self._held.keys()
            taken = self._taken
            self._over.update(one for one in over if one in self._held)
            expired = {one for one, until in self._held.items() if until < now} - taken
            expired &= self._over
            sent = (taken & self._over) | expired
            for one in sent:
                del self._held[one]
            self._over -= sent
            self._taken -= sent
            if expired:
                self.counts["expired"] += len(expired)
                log.warning("nobody came for the KV of %d requests", len(expired))
            received, self._received = self._received, set()
        return sent, received

    def failed_blocks(self) -> set[int]:
        """Blocks that were to be filled and were not, since the last call."""
        with self._lock:
            failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def close(self) -> None:
        """Wait for what is under way, drop the rest."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)
        self.peers.close()
        if self._store is not None:
            self._store.close()
        log.info("blocks: %s", ", ".join(f"{count} {name}" for name, count in self.counts.items()))

    def _start(self, kind: str, action: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                action(*arguments)
            except Exception:
                log.exception("a %s failed", kind)

        self._threads[kind].submit(run)

    def _keys(self, digests: Sequence[bytes]) -> list[str]:
        rank, degree = self._format.tp_rank, self._format.tp_degree
        return [store_key(digest, rank, degree) for digest in digests]

    def _begin_saving(self, saves: BlockSave, staging: Staging) -> "_Saving | None":
        slots = staging.take(len(saves.block_ids))
        self.counts["not_saved"] += len(saves.block_ids) - len(slots)
        # The first of them: a block is worth nothing without those before it.
        return _Saving(saves, slots, staging) if slots else None

    def _save(self, saving: "_Saving", ready: Any) -> None:
        assert self._store is not None
        count = len(saving.slots)
        digests, parents = saving.saves.digests[:count], saving.saves.parents[:count]
        try:
            if ready is not None:
                ready.synchronize()
            keys = self._keys(digests)
            before = [
                key if any(digest) else None
                for digest, key in zip(parents, self._keys(parents), strict=True)
            ]
            values = [saving.staging.buffer(slot) for slot in saving.slots]

            def put(store: Store) -> bool:
                store.put_many(keys, values, _OPTIONS, parents=before)
                return True

            stored = self._store.call(put, False)
            self.counts["saved" if stored else "not_saved"] += count
        finally:
            saving.staging.give_back(saving.slots)

    def _load(self, load: BlockLoad) -> None:
        good: set[int] = set()
        try:
            for at in range(0, len(load.digests), _BATCH):
                part = slice(at, at + _BATCH)
                filled = self._load_some(load.digests[part], load.block_ids[part])
                good |= filled
                if len(filled) < len(load.block_ids[part]):
                    break  # what comes after a gap is computed anyway
        finally:
            self._arrived(load.request_id, load.block_ids, good, "loaded")

    def _load_some(self, digests: Sequence[bytes], block_ids: Sequence[int]) -> set[int]:
        """Fill some blocks; those that were filled."""
        assert self._store is not None and self._staging is not None
        staging, filled = self._staging, set[int]()
        keys = self._keys(digests)
        while keys:
            slots = staging.wait(len(keys), timeout_s=5.0)
            if not slots:
                break
            count = len(slots)
            try:
                buffers = [staging.buffer(slot) for slot in slots]
                sizes = self._store.call(partial(_get, keys[:count], buffers), [None] * count)
                there = [i for i, size in enumerate(sizes) if size == self._pages.page_bytes]
                if there:
                    staging.copy_out(
                        staging.indices([block_ids[i] for i in there], on_device=True),
                        staging.indices([slots[i] for i in there], on_device=False),
                    )
                    self._settle()
                filled.update(block_ids[i] for i in there)
                if len(there) < count:
                    break
            finally:
                staging.give_back(slots)
            keys, block_ids = keys[count:], block_ids[count:]
        return filled

    def _settle(self) -> None:
        if not self._pages.on_host:
            import torch

            torch.cuda.synchronize(self._pages.first.blocks.device)

    def _fetch(self, fetch: BlockFetch) -> None:
        good: set[int] = set()
        try:
            good = self.peers.fetch(fetch, self._format.tp_rank)
        except (InlayError, OSError) as error:
            log.warning("request %s: its prompt is computed here: %s", fetch.request_id, error)
        finally:
            if fetch.block_ids:
                self._arrived(fetch.request_id, fetch.block_ids, good, "fetched")

    def _arrived(
        self, request_id: str, block_ids: Sequence[int], good: set[int], kind: str
    ) -> None:
        failed = set(block_ids) - good
        with self._lock:
            self.counts[kind] += len(good)
            self.counts[f"not_{kind}"] += len(failed)
            self._failed_blocks |= failed
            self._received.add(request_id)


def _get(keys: Sequence[str], buffers: Sequence[tuple[int, int]], store: Store) -> list[Any]:
    return store.get_into_many(keys, buffers)


class _Saving:
    """The blocks that one step completes, on their way to host memory."""

    def __init__(self, saves: BlockSave, slots: list[int], staging: Staging) -> None:
        self.saves = saves
        self.slots = slots
        self.staging = staging
        self._block_ids = staging.indices(saves.block_ids[: len(slots)], on_device=True)
        self._copied: set[str] = set()

    def copy(self, name: str) -> None:
        if name not in self._copied:
            self._copied.add(name)
            self.staging.copy_in(name, self._block_ids, self.slots)

    def finish(self, names: Iterable[str]) -> Any:
        """Copy what no layer called for; an event to wait for, or None on the host."""
        for name in names:
            self.copy(name)
        if not self.staging.memory.is_pinned():
            return None
        import torch

        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event
