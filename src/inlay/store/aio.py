"""The calls of a store for asyncio: `await aio.get(store, key)`.

Threads of the store make the calls, without the GIL; one descriptor per event loop tells which are
over. A task that is cancelled goes on when its call no longer touches its buffers, at the latest
when the call's time is over.
"""

import asyncio
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from inlay.core.errors import InlayError, KeyNotFound
from inlay.store import _backend
from inlay.store.options import ObjectStat, PutOptions, PutResult
from inlay.store.store import KEEP, Key, Parents, Ranges, Store, missing, only, result_of, stat_of
from inlay.store.view import ObjectView
from inlay.transfer._backend import Completions


class _Watcher:
    """What tasks of one loop await."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._completions = Completions()
        self._keys = itertools.count()
        self._awaited: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self._completions.fileno(), self._take)

    def _take(self) -> None:
        for key in self._completions.take():
            self._awaited.pop(key).set_result(None)

    async def finish(self, call: _backend.Call) -> list[Any]:
        cancelled = False
        while True:
            key = next(self._keys)
            told = asyncio.get_running_loop().create_future()
            self._awaited[key] = told
            try:
                begun = not cancelled and call.begin(self._completions, key)
            except BaseException:
                del self._awaited[key]
                raise
            if not begun:
                del self._awaited[key]
                break
            while not told.done():
                try:
                    await asyncio.shield(told)
                except asyncio.CancelledError:
                    cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return call.result()


_watchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Watcher] = (
    weakref.WeakKeyDictionary()
)


async def _finish(call: _backend.Call) -> list[Any]:
    loop = asyncio.get_running_loop()
    watcher = _watchers.get(loop)
    if watcher is None:
        watcher = _watchers[loop] = _Watcher(loop)
    return await watcher.finish(call)


async def put(
    store: Store,
    key: Key,
    value: Any,
    options: PutOptions = KEEP,
    *,
    timeout_s: float | None = None,
) -> PutResult:
    """As `Store.put`."""
    return (await put_many(store, [key], [value], options, timeout_s=timeout_s))[0]


async def upsert(
    store: Store,
    key: Key,
    value: Any,
    options: PutOptions = KEEP,
    *,
    timeout_s: float | None = None,
) -> PutResult:
    """As `Store.upsert`."""
    return await put(store, key, value, options.replacing, timeout_s=timeout_s)


async def put_many(
    store: Store,
    keys: Sequence[Key],
    values: Sequence[Any],
    options: PutOptions = KEEP,
    *,
    parents: Parents | None = None,
    timeout_s: float | None = None,
) -> list[PutResult]:
    """As `Store.put_many`."""
    time = store.time_of(timeout_s)
    hint = options.parent if parents is None else parents
    call = _backend.start_put(store.client, keys, values, False, options.fields, hint, time)
    return [
        result_of(key, *outcome) for key, outcome in zip(keys, await _finish(call), strict=True)
    ]


async def put_parts(
    store: Store,
    key: Key,
    parts: Sequence[Any],
    options: PutOptions = KEEP,
    *,
    timeout_s: float | None = None,
) -> PutResult:
    """As `Store.put_parts`."""
    time = store.time_of(timeout_s)
    call = _backend.start_put(
        store.client, [key], [parts], True, options.fields, options.parent, time
    )
    return result_of(key, *(await _finish(call))[0])


async def get(store: Store, key: Key, *, timeout_s: float | None = None) -> bytes:
    """As `Store.get`."""
    return only(key, await get_many(store, [key], timeout_s=timeout_s))


async def get_or_none(store: Store, key: Key, *, timeout_s: float | None = None) -> bytes | None:
    """As `Store.get_or_none`."""
    try:
        return await get(store, key, timeout_s=timeout_s)
    except KeyNotFound:
        return None


async def get_many(
    store: Store, keys: Sequence[Key], *, timeout_s: float | None = None
) -> list[bytes | InlayError | None]:
    """As `Store.get_many`."""
    time = store.time_of(timeout_s)
    return await _finish(_backend.start_get(store.client, keys, None, False, None, time))


async def get_into(store: Store, key: Key, buffer: Any, *, timeout_s: float | None = None) -> int:
    """As `Store.get_into`, from the buffer's start."""
    return only(key, await get_into_many(store, [key], [buffer], timeout_s=timeout_s))


async def get_into_many(
    store: Store, keys: Sequence[Key], buffers: Sequence[Any], *, timeout_s: float | None = None
) -> list[int | InlayError | None]:
    """As `Store.get_into_many`."""
    time = store.time_of(timeout_s)
    return await _finish(_backend.start_get(store.client, keys, buffers, False, None, time))


async def get_parts(
    store: Store,
    key: Key,
    buffers: Sequence[Any],
    ranges: Ranges | None = None,
    *,
    timeout_s: float | None = None,
) -> int:
    """As `Store.get_parts`."""
    every = None if ranges is None else [ranges]
    return only(key, await get_parts_many(store, [key], [buffers], every, timeout_s=timeout_s))


async def get_parts_many(
    store: Store,
    keys: Sequence[Key],
    buffers: Sequence[Sequence[Any]],
    ranges: Sequence[Ranges] | None = None,
    *,
    timeout_s: float | None = None,
) -> list[int | InlayError | None]:
    """As `Store.get_parts_many`."""
    time = store.time_of(timeout_s)
    return await _finish(_backend.start_get(store.client, keys, buffers, True, ranges, time))


async def view(
    store: Store, key: Key, *, verify: bool = False, timeout_s: float | None = None
) -> ObjectView:
    """As `Store.view`."""
    call = _backend.start_view(store.client, key, verify, store.time_of(timeout_s))
    (found,) = await _finish(call)
    if found is None:
        raise missing(key)
    return ObjectView(found)


async def stat(store: Store, key: Key, *, timeout_s: float | None = None) -> ObjectStat:
    """As `Store.stat`."""
    call = _backend.start_stat(store.client, key, store.time_of(timeout_s))
    (found,) = await _finish(call)
    if found is None:
        raise missing(key)
    return stat_of(found)


async def exists_many(
    store: Store, keys: Sequence[Key], *, timeout_s: float | None = None
) -> list[bool]:
    """As `Store.exists_many`."""
    return await _finish(_backend.start_ask(store.client, keys, False, store.time_of(timeout_s)))


async def remove_many(
    store: Store, keys: Sequence[Key], *, timeout_s: float | None = None
) -> list[bool]:
    """As `Store.remove_many`."""
    return await _finish(_backend.start_ask(store.client, keys, True, store.time_of(timeout_s)))
