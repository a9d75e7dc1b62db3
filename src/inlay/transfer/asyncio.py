"""How `await batch` works: one descriptor per event loop tells what it waited for.

No thread waits: the engine's own moves the bytes and signals the descriptor, which the loop watches
beside its sockets.
"""

import asyncio
import itertools
import weakref
from collections.abc import Callable

from inlay.transfer._backend import Batch, Completions, Engine, stop

# After a cancel, how long answers of writes are waited for before they are given up. Local memory
# is free of the batch within microseconds.
_GRACE_S = 0.05


class _Watcher:
    """What tasks of one loop await."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._completions = Completions()
        self._keys = itertools.count()
        self._awaited: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self._completions.fileno(), self._take)

    def _take(self) -> None:
        for key in self._completions.take():
            future = self._awaited.pop(key, None)
            if future is not None and not future.done():
                future.set_result(None)

    async def over(self, batch: Batch) -> None:
        """Return when the batch is over. Its failure is not raised."""
        await self._told(lambda key: self._completions.watch(batch, key))

    async def message(self, engine: Engine) -> None:
        """Return when there is a message, or the engine closes."""
        await self._told(lambda key: self._completions.watch_messages(engine, key))

    async def _told(self, watch: Callable[[int], bool]) -> None:
        key = next(self._keys)
        future = asyncio.get_running_loop().create_future()
        self._awaited[key] = future
        try:
            if watch(key):
                await future
        finally:
            self._awaited.pop(key, None)


# A loop that is gone takes its watcher along.
_watchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Watcher] = (
    weakref.WeakKeyDictionary()
)


def _watcher() -> _Watcher:
    loop = asyncio.get_running_loop()
    watcher = _watchers.get(loop)
    if watcher is None:
        watcher = _watchers[loop] = _Watcher(loop)
    return watcher


async def wait(batch: Batch) -> None:
    """What `await batch` does: as `batch.wait()`, without blocking the event loop.

    When the task is cancelled, the batch is cancelled, and the task goes on when nothing of it can
    touch local memory any more.
    """
    if not batch.done:
        watcher = _watcher()
        try:
            await watcher.over(batch)
        except asyncio.CancelledError:
            stop(batch, _GRACE_S)
            while not batch.done:
                try:
                    await watcher.over(batch)
                except asyncio.CancelledError:  # again: the batch still has the memory
                    continue
            raise
    batch.wait(0)


async def wait_for_message(engine: Engine) -> None:
    """Return when the engine has a message that nobody took, or closes."""
    await _watcher().message(engine)
