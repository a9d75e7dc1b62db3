"""A process in a Ray actor, as its supervisor sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from inlay.cluster.launch.launcher import ProcessSpec, Said
from inlay.cluster.launch.log_file import Log
from inlay.cluster.launch.ray_actor import Began, Ended, Event

SETTLE_S = 5.0
"""For Ray to do, or to say, what became of an actor that was ended."""

_LOOK_S = 0.3

DropActor = Callable[[Any, bool], None]
"""Ends an actor for good; and where the second one says so, its process will not come back."""


class RayProcess:
    """A process in an actor. All methods are called on the event loop that made it.

    Args:
        actor: Ray's handle of a `ProcessActor`.
        log: the process's, closed at its end.
        drop: ends the actor; see `DropActor`.

    Attributes:
        pid: on its machine; 0 until it is known.
        where: its machine; empty for this one.
    """

    def __init__(
        self, spec: ProcessSpec, actor: Any, log: Log, drop: DropActor, *, where: str
    ) -> None:
        self.pid = 0
        self.where = where
        self._actor = actor
        self._log = log
        self._drop = drop
        self._said: asyncio.Queue[Said | None] = asyncio.Queue()
        self._how = ""
        self._task = asyncio.ensure_future(self._follow(spec))

    async def lines(self) -> AsyncIterator[Said]:
        """What it says, until its end."""
        while (said := await self._said.get()) is not None:
            yield said

    async def ended(self) -> str:
        """Wait for its end; how that was."""
        await asyncio.wait((self._task,))
        return self._how

    async def stop(self, grace_s: float) -> None:
        """Let it end, and its actor then; both are killed after `grace_s`."""
        if self.pid and not self._task.done():
            self._actor.stop.remote(grace_s)
            await asyncio.wait((self._task,), timeout=grace_s + SETTLE_S)
        self._end(leave=True)
        await self.ended()

    def kill(self) -> None:
        """Kill its actor, and it with that; the next run has another actor."""
        self._end(leave=False)

    def log_end(self) -> Sequence[str]:
        """The last lines of its log."""
        return self._log.tail

    def _end(self, *, leave: bool) -> None:
        self._how = self._how or "was killed with its Ray actor"
        self._drop(self._actor, leave)
        asyncio.get_running_loop().call_later(SETTLE_S, self._task.cancel)

    async def _follow(self, spec: ProcessSpec) -> None:
        """Run it, and take what becomes of it, until its end."""
        from ray.exceptions import RayError

        try:
            await self._actor_back()
            events = self._actor.run.options(num_returns="streaming").remote(spec)
            async for event in events:
                self._take(await event)
        except RayError as error:
            self._how = self._how or self._lost(error)
        finally:
            self._log.close()
            self._said.put_nowait(None)

    async def _actor_back(self) -> None:
        """Wait while Ray restarts the actor. Ray could, with a line on our output each time."""
        from ray.exceptions import ActorUnavailableError

        while True:
            try:
                return await self._actor.present.remote()  # type: ignore[no-any-return]
            except ActorUnavailableError:
                await asyncio.sleep(_LOOK_S)

    def _take(self, event: Event) -> None:
        match event:
            case Began(pid):
                self.pid = pid
            case Said():
                self._said.put_nowait(event)
            case bytes():
                self._log.write(event)
            case Ended(how):
                self._how = how

    def _lost(self, error: Exception) -> str:
        """What Ray says of an actor, in words."""
        from ray.exceptions import ActorUnavailableError, RayTaskError

        if isinstance(error, ActorUnavailableError):
            return "was lost with its Ray actor, which Ray restarts"
        if isinstance(error, RayTaskError):
            return f"cannot be started: {error.cause}"
        self._drop(self._actor, False)  # the next run has another one
        return f"was lost with its Ray actor, for good: {' '.join(str(error).split())}"
