"""A launcher whose processes do what a test says, on a clock that a test moves."""

import asyncio
from collections.abc import AsyncIterator

from inlay.cluster.launch.launcher import ProcessSpec, Running, Said
from inlay.core.clock import FakeClock


class Scripted:
    """A process that says and ends as it is told."""

    where = ""

    def __init__(self, spec: ProcessSpec, pid: int) -> None:
        self.spec = spec
        self.pid = pid
        self.asked_to_stop = False
        self._said: asyncio.Queue[Said | None] = asyncio.Queue()
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def say(self, state: str, **fields: str) -> None:
        self._said.put_nowait(Said(state=state, **fields))  # type: ignore[arg-type]

    def end(self, how: str = "was killed by SIGKILL") -> None:
        if not self._end.done():
            self._said.put_nowait(None)
            self._end.set_result(how)

    async def lines(self) -> AsyncIterator[Said]:
        while (said := await self._said.get()) is not None:
            yield said

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    async def stop(self, grace_s: float) -> None:
        self.asked_to_stop = True
        self.end("ended with exit status 0")

    def kill(self) -> None:
        self.end()

    def log_end(self) -> tuple[str, ...]:
        return ("the last line",)


class ScriptedLauncher:
    """Keeps all that was started, by name and in order."""

    def __init__(self) -> None:
        self.started: list[Scripted] = []
        self.error: OSError | None = None
        self.closed = False

    def last(self, name: str) -> Scripted:
        return next(one for one in reversed(self.started) if one.spec.name == name)

    async def start(self, spec: ProcessSpec) -> Running:
        if self.error is not None:
            raise self.error
        self.started.append(Scripted(spec, pid=1000 + len(self.started)))
        return self.started[-1]

    def log_file(self, name: str) -> str:
        return f"/logs/{name}.log"

    async def close(self) -> None:
        self.closed = True


class Sleeps:
    """`sleep` on a clock that moves when a test says so."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._waiting: list[tuple[float, asyncio.Future[None]]] = []

    @property
    def waits(self) -> list[float]:
        """Seconds that are slept now, as they were asked for."""
        return [until - self.clock.now() for until, one in self._waiting if not one.done()]

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.clock.now() + seconds, future))
        await future

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for until, future in self._waiting:
            if until <= self.clock.now() + 1e-9 and not future.done():
                future.set_result(None)
        await settle()


async def settle() -> None:
    """Let all tasks go on until they wait for something outside."""
    for _ in range(30):
        await asyncio.sleep(0)
