"""The scheduler's half: which blocks are to be had elsewhere, and which are new.

It runs in vLLM's scheduler, between two steps, so it never waits for the store longer than
`lookup_s` a request, and usually not at all: while a look-up runs, vLLM is told to ask again.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any

import msgspec

from inlay.connect.shared_store import SharedStore
from inlay.connect.vllm.remote_prompt import RemotePrompt
from inlay.connect.vllm.settings import ConnectorSettings
from inlay.connect.vllm.steps import BlockFetch, BlockLoad, StepWork
from inlay.core.block_hash import ROOT, Namespace, chain, store_key
from inlay.core.errors import ArgumentError

log = logging.getLogger(__name__)

_BRIEFLY_S = 0.005
"""A look-up is waited for so long before vLLM is told to ask again: most are over by then."""


class _Tracked:
    """One request of vLLM's.

    Attributes:
        request: vLLM's own, which grows.
        key: of its names; None where tokens alone do not say what its KV holds.
        digests: names of its leading full blocks, as far as needed yet.
        lookup: asks how many leading blocks the store has; None before and after.
        since_s: when that began.
        found: leading blocks that the store had.
        first: leading blocks that vLLM had itself when it asked.
        saved: leading blocks that are in the store, or on their way.
        remote: where its prompt was computed, until it is fetched from there.
    """

    __slots__ = (
        "digests", "first", "found", "key", "lookup", "remote", "request", "saved", "since_s",
    )  # fmt: skip

    def __init__(self, request: Any, key: bytes | None, remote: RemotePrompt | None) -> None:
        self.request = request
        self.key = key
        self.digests: list[bytes] = []
        self.lookup: Future[int] | None = None
        self.since_s = 0.0
        self.found = 0
        self.first = 0
        self.saved = 0
        self.remote = remote

    def named(self, blocks: int, block_tokens: int) -> list[bytes]:
        """Names of the first `blocks` blocks."""
        assert self.key is not None
        have = len(self.digests)
        if blocks > have:
            tokens = self.request.all_token_ids[have * block_tokens : blocks * block_tokens]
            parent = self.digests[-1] if self.digests else ROOT
            self.digests += chain(self.key, list(tokens), block_tokens, parent)
        return self.digests[:blocks]


class Scheduling:
    """See the module.

    Args:
        settings: of the connector.
        namespace: of the instance.
        store: shared with other engines; None: none.
        engine_id: of vLLM, told to who fetches from here.
        block_ids: the blocks that vLLM has given to a request, by its id.

    Attributes:
        addresses: of the workers, by rank; empty: others cannot fetch from here.
        refused: requests whose `kv_transfer_params` could not be followed.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        namespace: Namespace,
        store: SharedStore | None,
        engine_id: str,
        block_ids: Callable[[str], Sequence[int]],
    ) -> None:
        self._settings = settings
        self._namespace = namespace
        self._store = store
        self._engine_id = engine_id
        self._block_ids = block_ids
        self._block_tokens = namespace.kv_format.page_tokens
        self._ranks = namespace.kv_format.tp_degree
        self._keys: dict[tuple[str, str], bytes] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._work = StepWork()
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="inlay-lookup")
        self.addresses: list[str] = []
        self.refused = 0

    def matched(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens beyond `computed_tokens` are to be had: see vLLM's connector."""
        tracked = self._track(request)
        if tracked.remote is not None:
            tokens = tracked.remote.tokens - computed_tokens
            tracked.first = computed_tokens // self._block_tokens
            return max(0, tokens), tokens > 0
        if self._store is None or tracked.key is None or not self._store.usable:
            return 0, False
        # One token at least is computed here: its logits are what the request is about.
        blocks = (int(request.num_tokens) - 1) // self._block_tokens
        if tracked.lookup is None:
            keys = self._store_keys(tracked.named(blocks, self._block_tokens))
            tracked.lookup = self._lookups.submit(self._leading, keys)
            tracked.since_s = time.monotonic()
        try:
            tracked.found = tracked.lookup.result(timeout=_BRIEFLY_S)
        except NotYet:
            if time.monotonic() - tracked.since_s < self._settings.lookup_s:
                return None, False
            tracked.lookup.cancel()
            tracked.lookup = None
            return 0, False
        tracked.first = computed_tokens // self._block_tokens
        tokens = tracked.found * self._block_tokens - computed_tokens
        return max(0, tokens), tokens > 0

    def allocated(self, request: Any, block_ids: Sequence[int], external_tokens: int) -> None:
        """vLLM has given blocks to a request, of which some are to be filled from elsewhere."""
        tracked = self._track(request)
        tracked.lookup = None
        tracked.saved = max(tracked.saved, tracked.found)
        remote, tracked.remote = tracked.remote, None  # once: what then is missing is computed
        if remote is not None:
            self._fetch(tracked, remote, block_ids, external_tokens)
        elif external_tokens > 0:
            end = tracked.first + external_tokens // self._block_tokens
            self._work.loads.append(
                BlockLoad(
                    request.request_id,
                    tracked.named(end, self._block_tokens)[tracked.first :],
                    list(block_ids[tracked.first : end]),
                )
            )

    def step(self, planned: Any) -> StepWork:
        """What the workers have to do with the step that vLLM has planned.

        Args:
            planned: vLLM's `SchedulerOutput`.
        """
        work, self._work = self._work, StepWork()
        if self._store is not None and self._store.usable:
            cached = planned.scheduled_cached_reqs
            before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            before |= {new.req_id: new.num_computed_tokens for new in planned.scheduled_new_reqs}
            for request_id, tokens in planned.num_scheduled_tokens.items():
                # What was only guessed may be computed again with other tokens.
                guessed = len(planned.scheduled_spec_decode_tokens.get(request_id, ()))
                self._save(work, request_id, before[request_id] + tokens - guessed)
        return work

    def finished(
        self, request: Any, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request is over: whether its blocks are to be kept, and what its response says."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is not None and tracked.remote is not None:
            # It was cancelled before anything came of it; the other instance need not hold it.
            self._fetch(tracked, tracked.remote, (), 0)
        params = request.kv_transfer_params
        if not isinstance(params, dict) or not params.get("do_remote_decode"):
            return False, None
        if not block_ids or not self.addresses or not _ended_by_length(request):
            return False, None
        self._work.holds[request.request_id] = self._settings.hold_s
        return True, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._engine_id,
            "remote_request_id": request.request_id,
            "remote_addresses": list(self.addresses),
            "remote_block_ids": list(block_ids),
            "remote_num_tokens": int(request.num_computed_tokens),
            "tp_size": self._ranks,
        }

    def lost(self, block_ids: Collection[int]) -> None:
        """Blocks were to be filled and were not: they are computed, and saved then."""
        for request_id, tracked in self._tracked.items():
            if not set(self._block_ids(request_id)).isdisjoint(block_ids):
                tracked.saved = 0

    def close(self) -> None:
        """Let go of the store."""
        if self.refused:
            log.info("kv_transfer_params of %d requests were refused", self.refused)
        self._lookups.shutdown(wait=False, cancel_futures=True)
        if self._store is not None:
            self._store.close()

    def _track(self, request: Any) -> _Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            tracked = _Tracked(request, self._key(request), self._remote(request))
            self._tracked[request.request_id] = tracked
        return tracked

    def _key(self, request: Any) -> bytes | None:
        """The key of a request's block names; None for images and the like."""
        if request.mm_features or request.prompt_embeds is not None or not request.num_tokens:
            return None
        lora = request.lora_request
        adapter = "" if lora is None else f"{lora.lora_name}:{lora.lora_path}"
        salt = request.cache_salt or ""
        key = self._keys.get((adapter, salt))
        if key is None:
            namespace = msgspec.structs.replace(self._namespace, adapter=adapter, tenant_salt=salt)
            key = namespace.key(self._settings.secret.encode())
            if len(self._keys) >= 4096:  # salts may be as many as users
                self._keys.clear()
            self._keys[(adapter, salt)] = key
        return key

    def _store_keys(self, digests: Sequence[bytes]) -> list[str]:
        """Of each block the keys of all ranks."""
        return [store_key(one, rank, self._ranks) for one in digests for rank in range(self._ranks)]

    def _leading(self, keys: Sequence[str]) -> int:
        """How many leading blocks are there, of all ranks."""
        assert self._store is not None
        time_s = self._settings.lookup_s
        none: list[bool] = []
        there = self._store.call(lambda store: store.exists_many(keys, timeout_s=time_s), none)
        present = there.index(False) if False in there else len(there)
        return present // self._ranks

    def _save(self, work: StepWork, request_id: str, computed_tokens: int) -> None:
        tracked = self._tracked.get(request_id)
        if tracked is None or tracked.key is None:
            return
        known = min(computed_tokens, len(tracked.request.all_token_ids))
        blocks = known // self._block_tokens
        if blocks <= tracked.saved:
            return
        digests = tracked.named(blocks, self._block_tokens)
        first = tracked.saved
        saves = work.saves
        saves.digests += digests[first:]
        saves.parents += [digests[i - 1] if i else ROOT for i in range(first, blocks)]
        saves.block_ids += self._block_ids(request_id)[first:blocks]
        tracked.saved = blocks

    def _remote(self, request: Any) -> RemotePrompt | None:
        """Where a request's prompt was computed; None: here, also where that cannot be followed."""
        params = request.kv_transfer_params
        if not params or (isinstance(params, dict) and not params.get("do_remote_prefill")):
            return None
        try:
            return RemotePrompt.read(
                params,
                ranks=self._ranks,
                prompt_tokens=int(request.num_prompt_tokens),
                block_tokens=self._block_tokens,
            )
        except ArgumentError as error:
            self.refused += 1
            log.warning(
                "request %s: its prompt is computed here: kv_transfer_params: %s",
                request.request_id,
                error,
            )
            return None

    def _fetch(
        self, tracked: _Tracked, remote: RemotePrompt, block_ids: Sequence[int], tokens: int
    ) -> None:
        """Have blocks fetched from the instance that computed them, or tell it not to wait."""
        end = tracked.first + -(-tokens // self._block_tokens)
        self._work.fetches.append(
            BlockFetch(
                tracked.request.request_id,
                list(block_ids[tracked.first : end]),
                remote.block_ids[tracked.first : end],
                remote.addresses,
                remote.request_id,
            )
        )


def _ended_by_length(request: Any) -> bool:
    """Whether a prompt is complete: it was asked for a number of tokens, and has them."""
    return str(getattr(request.status, "name", "")) == "FINISHED_LENGTH_CAPPED"
