"""Opens what other instances send KV through."""

import hashlib
from collections.abc import Callable
from typing import Any

from inlay.cache.kv_cache import KvCache
from inlay.cache.stream import SEGMENT, KvStream
from inlay.core.kv_format import KvFormat
from inlay.transfer import Access, TransferEngine

_PERSON = b"inlay-exchange"  # the secret has other uses, too


def open_stream(
    listen: str,
    secret: str,
    *,
    memory: Any,
    on_device: bool,
    kv_format: KvFormat,
    cache: KvCache,
    on_ready: Callable[[], None] | None,
) -> KvStream:
    """Let other instances write to pages that are reserved for them, and write to theirs.

    Args:
        listen: "host:port", port 0 for any free one.
        secret: of the deployment: only who holds it may connect; empty: this user's processes.
        memory: all pages, as `TransferEngine.register` takes it.
        on_device: whether it is memory of a GPU.

    Raises:
        AddressInUseError: another process listens there.
        TransportUnavailableError: the compiled extension is missing.
    """
    token = hashlib.blake2b(secret.encode(), digest_size=32, person=_PERSON).digest()
    engine = TransferEngine(listen, token=token if secret else None)
    try:
        segment = engine.register(
            memory,
            name=SEGMENT,
            remote=Access.WRITE,
            page_bytes=None if on_device else kv_format.page_bytes,
        )
        return KvStream(engine, segment, kv_format, cache, guarded=not on_device, on_ready=on_ready)
    except BaseException:
        engine.close()
        raise
