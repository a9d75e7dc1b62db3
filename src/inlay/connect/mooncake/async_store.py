"""`MooncakeDistributedStoreAsync`: each call as `async_NAME`, in a thread."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from inlay.connect.mooncake.store import MooncakeDistributedStore


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A coroutine for each method; the loop goes on while a thread of asyncio waits for it.

    `inlay.store.aio` needs no threads, and takes tensors and timeouts: use it in new code.
    """

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        call = getattr(type(self), name.removeprefix("async_"), None)
        if not name.startswith("async_") or not callable(call):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        async def run(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(call, self, *args, **kwargs)

        return run
