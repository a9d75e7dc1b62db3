"""How `await batch` works: one descriptor per event loop tells which batches are over.

No thread waits: the engine's own moves the bytes and signals the descriptor, which the loop watches
beside its sockets.
"""

import asyncio
import itertools
import weakref

from inlay.transfer._backend import Batch, Completions, stop

# After a cancel, how long answers of writes are waited for before they are given up. Local memory
# is free of the batch within microseconds.
_GRACE_S = 0.05


class _Watcher:
    """The batches that tasks of one loop await."""

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
        key = next(self._keys)
        future = asyncio.get_running_loop().create_future()
        self._awaited[key] = future
        try:
            if self._completions.watch(batch, key):
                await future
        finally:
            self._awaited.pop(key, None)


# A loop that is gone takes its watcher along.
_watchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Watcher] = (
    weakref.WeakKeyDictionary()
)


async def wait(batch: Batch) -> None:
    """What `await batch` does: as `batch.wait()`, without blocking the event loop.

    When the task is cancelled, the batch is cancelled, and the task goes on when nothing of it can
    touch local memory any more.
    """
    if not batch.done:
        loop = asyncio.get_running_loop()
        watcher = _watchers.get(loop)
        if watcher is None:
            watcher = _watchers[loop] = _Watcher(loop)
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
