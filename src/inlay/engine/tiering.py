"""Puts the tiers behind the pages of a loaded model, and other instances beside them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from inlay.cache import BlockStore, PagedKvCache, PageMemory, Tiers, WriteBack, open_stream
from inlay.cache.config import WriteWhen
from inlay.core.clock import Clock
from inlay.engine.exchange import Exchange
from inlay.engine.loading import LoadedModel
from inlay.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from inlay.models.kv_pool import KvPool


def open_tiers(
    cache: PagedKvCache,
    when: WriteWhen,
    loaded: LoadedModel,
    clock: Clock,
    on_ready: Callable[[], None] | None,
) -> Tiers:
    """Move blocks between a model's pool and its store from now on; see `Tiers`."""
    assert loaded.store is not None
    pool = loaded.pool.whole
    pages: Sequence[Any] = pool.as_bytes() if pool.on_cpu else pool.device_bytes()  # type: ignore[assignment]
    cache.write_back = WriteBack(when)
    blocks = BlockStore(
        loaded.store,
        kv_format=loaded.kv_format,
        pages=pages,
        settle=None if pool.on_cpu else partial(_settle, pool.data.device),
        on_done=on_ready,
    )
    return Tiers(
        cache, cache.write_back, blocks, page_bytes=loaded.kv_format.page_bytes, clock=clock
    )


def open_exchange(
    listen: str,
    secret: str,
    cache: PagedKvCache,
    scheduler: Scheduler,
    loaded: LoadedModel,
    clock: Clock,
    on_ready: Callable[[], None] | None,
) -> Exchange:
    """Let other instances send KV to a model's pool, and send to theirs; see `Exchange`.

    Raises:
        ConfigError: the model's layers are on several devices.
        AddressInUseError: another process listens at `listen`.
        RankLostError: a rank ended.
    """
    ranks = loaded.ranks
    stream = open_stream(
        listen,
        secret,
        page_memory(loaded.pool),
        others=lambda owner: () if ranks is None else ranks.open_exchange(owner),
        cache=cache,
        on_ready=on_ready,
    )
    return Exchange(stream, cache, scheduler, clock)


def page_memory(pool: "KvPool") -> PageMemory:
    """All of a pool, for what moves its pages.

    Raises:
        ConfigError: it is on several devices.
    """
    part = pool.whole
    memory = part.as_bytes() if part.on_cpu else part.device_bytes()
    return PageMemory(memory=memory, on_device=not part.on_cpu, kv_format=pool.format)


def _settle(device: Any) -> None:
    """Wait for a GPU: steps return before it has done their work."""
    import torch

    torch.cuda.synchronize(device)
