"""Opens what other instances send KV through, in an engine's process and in those of its ranks."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inlay.cache.kv_cache import KvCache
from inlay.cache.other_rank import OtherRank
from inlay.cache.rank_pages import OwnPages
from inlay.cache.rank_server import RankServer
from inlay.cache.stream import SEGMENT, KvStream
from inlay.core.kv_format import KvFormat
from inlay.transfer import Access, TransferEngine

_PERSON = b"inlay-exchange"  # the secret has other uses, too


@dataclass(frozen=True, kw_only=True)
class PageMemory:
    """All pages of one process.

    Attributes:
        memory: as `TransferEngine.register` takes it.
        on_device: whether it is memory of a GPU, which takes no grants.
        kv_format: layout of a page.
    """

    memory: Any
    on_device: bool
    kv_format: KvFormat


def open_stream(
    listen: str,
    secret: str,
    pages: PageMemory,
    *,
    others: Callable[[str], Sequence[str]],
    cache: KvCache,
    on_ready: Callable[[], None] | None,
) -> KvStream:
    """Let other instances write to pages that are reserved for them, and write to theirs.

    Args:
        listen: "host:port", port 0 for any free one.
        secret: of the deployment: only who holds it may connect; empty: this user's processes.
        others: given where this process listens, has `serve_rank` called in those of the other
            ranks, and tells where they listen.

    Raises:
        AddressInUseError: another process listens there.
        TransportUnavailableError: the compiled extension is missing.
    """
    engine = _engine(listen, secret)
    try:
        return KvStream(
            engine,
            _own_pages(engine, pages),
            [OtherRank(engine, address) for address in others(engine.address)],
            cache,
            guarded=not pages.on_device,
            on_ready=on_ready,
        )
    except BaseException:
        engine.close()
        raise


def serve_rank(listen: str, secret: str, pages: PageMemory, owner: str) -> RankServer:
    """The same for another rank, whose pages the engine at `owner` disposes of. Raises as above."""
    engine = _engine(listen, secret)
    try:
        return RankServer(engine, _own_pages(engine, pages), owner)
    except BaseException:
        engine.close()
        raise


def _engine(listen: str, secret: str) -> TransferEngine:
    token = hashlib.blake2b(secret.encode(), digest_size=32, person=_PERSON).digest()
    return TransferEngine(listen, token=token if secret else None)


def _own_pages(engine: TransferEngine, pages: PageMemory) -> OwnPages:
    segment = engine.register(
        pages.memory,
        name=SEGMENT,
        remote=Access.WRITE,
        page_bytes=None if pages.on_device else pages.kv_format.page_bytes,
    )
    return OwnPages(engine, segment, pages.kv_format, guarded=not pages.on_device)
