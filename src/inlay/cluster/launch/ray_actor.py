"""What runs in a Ray actor: one process of a deployment. It needs no Ray itself."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from inlay.cluster.launch.launcher import ProcessSpec, Said
from inlay.cluster.launch.local import LocalProcess


@dataclass(frozen=True)
class Began:
    """The process runs, with this id on the actor's machine."""

    pid: int


@dataclass(frozen=True)
class Ended:
    """The process is gone; how that was, in words."""

    how: str


Event = Began | Said | bytes | Ended
"""What becomes of a process, in order; bytes are of its log."""


class ProcessActor:
    """Holds a child process, which ends with the actor: its standard input is closed then.

    Ray restarts the actor on its machine, and without a process: whoever supervises the deployment
    knows when one is to be started again, and as what.
    """

    def __init__(self) -> None:
        self._process: LocalProcess | None = None

    async def present(self) -> None:
        """Answer as soon as the actor is there."""

    async def run(self, spec: ProcessSpec) -> AsyncIterator[Event]:
        """Start a process and tell what becomes of it, until its end.

        Raises:
            OSError: it cannot be started.
        """
        events: asyncio.Queue[Event] = asyncio.Queue()
        process = self._process = LocalProcess(spec, _Passed(events))
        passing = asyncio.ensure_future(_pass_on(process, events))
        yield Began(process.pid)
        while not isinstance(event := await events.get(), Ended):
            yield event
        await passing
        yield event

    async def stop(self, grace_s: float) -> None:
        """Let the process end, and kill it after `grace_s`; returns when it is gone."""
        if self._process is not None:
            await self._process.stop(grace_s)


class _Passed:
    """A log that is an event each time it is written to."""

    tail: Sequence[str] = ()

    def __init__(self, events: asyncio.Queue[Event]) -> None:
        self._events = events

    def write(self, data: bytes) -> None:
        self._events.put_nowait(data)

    def close(self) -> None:
        """The end of the process is an event, too."""


async def _pass_on(process: LocalProcess, events: asyncio.Queue[Event]) -> None:
    async for said in process.lines():
        events.put_nowait(said)
    events.put_nowait(Ended(await process.ended()))
