"""Keeps one process running: starts it, and starts it again when it ends."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from inlay.cluster.backoff import Backoff, BackoffConfig
from inlay.cluster.control import ProcessStatus, State
from inlay.cluster.launch.launcher import Launcher, ProcessSpec, Running, Said
from inlay.core.clock import Clock
from inlay.core.errors import EngineDiedError, EngineStartError, InlayError
from inlay.core.failures import restore

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """How a process is kept.

    Attributes:
        tries: of a process that never was ready; it is then given up, and at once when it says
            why it cannot start. One that was ready once is started again for ever.
        start_timeout_s: from its start until it is ready.
    """

    tries: int = 3
    start_timeout_s: float = 1800.0
    backoff: BackoffConfig = field(default_factory=BackoffConfig)


class Watcher(Protocol):
    """Is told what becomes of a process."""

    def changed(self, keeper: "Keeper", text: str) -> None:
        """Its state, address or run did; the text says so to people, where they want to know."""
        ...


class Keeper:
    """One process of a deployment, and what it is now.

    Attributes:
        spec: what is started next time.
        state: as `Member.state`.
        run: how many times it was started.
        address: where it is reached, empty until it said so.
        process: what runs, or None.
        failure: why it was given up.
        refused: of dispatchers that send this run nothing: why.
        weight_version: of the weights that compute this run's new requests.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        launcher: Launcher,
        config: KeepConfig,
        watcher: Watcher,
        *,
        clock: Clock,
        sleep: Sleep,
    ) -> None:
        self.spec = spec
        self.state: State = "starting"
        self.run = 0
        self.address = ""
        self.process: Running | None = None
        self.failure: InlayError | None = None
        self.refused: dict[str, str] = {}
        self.weight_version = ""
        self._launcher = launcher
        self._config = config
        self._watcher = watcher
        self._clock = clock
        self._sleep = sleep
        self._backoff = Backoff(config.backoff)
        self._note = ""
        self._log_end: tuple[str, ...] = ()
        self._since_s = self._started_s = clock.now()
        self._was_ready = False
        self._reason: Said | None = None
        loop = asyncio.get_running_loop()
        self._first: asyncio.Future[None] = loop.create_future()
        self._last_run: asyncio.Future[None] = loop.create_future()
        self._task = asyncio.ensure_future(self._keep())

    async def ready(self) -> None:
        """Wait until it was ready once.

        Raises:
            InlayError: it was given up, or stopped before.
        """
        await asyncio.shield(self._first)
        if self.failure is not None:
            raise self.failure

    def drain(self) -> None:
        """It is given nothing new, and is not started again when it ends."""
        self._end_with_this_run()
        if self.state == "ready":
            self._enter("draining")

    def restart(self, why: str) -> None:
        """Kill the process, which is of no use any more; it is started again as after any end."""
        if self.process is not None:
            self._reason = Said(state="failed", code=EngineDiedError.code, message=why)
            self.process.kill()

    async def stop(self, *, at_once: bool = False) -> None:
        """End the process, and start it no more; returns when it is gone."""
        self._end_with_this_run()
        if self.process is not None:
            if at_once:
                self.process.kill()
            else:
                await self.process.stop(self.spec.grace_s)
        await asyncio.shield(self._task)

    def status(self) -> ProcessStatus:
        """For people."""
        spec, process = self.spec, self.process
        return ProcessStatus(
            name=spec.name,
            kind=spec.kind,
            group=spec.group,
            role=spec.role,
            state=self.state,
            address=self.address,
            where=process.where if process else "",
            pid=process.pid if process else 0,
            run=self.run,
            since_s=self._clock.now() - self._since_s,
            note=self._note,
            log=self._launcher.log_file(spec.name),
            refused=next(iter(self.refused.values()), ""),
            weight_version=self.weight_version,
        )

    async def _keep(self) -> None:
        try:
            while not self._last_run.done():
                how, ran_s = await self._run_once()
                if self._last_run.done():
                    break
                if not self._was_ready and (self._reason or self.run >= self._config.tries):
                    self.failure = self._make_failure(how)
                    break
                wait_s = self._backoff.after(ran_s)
                self._note = how
                self._enter("starting", f"{self.spec.name} {how}; it starts again in {wait_s:g} s")
                await self._pause(wait_s)
        finally:
            self._enter("gone")
            if not self._first.done():
                self._first.set_result(None)
                self.failure = self.failure or EngineStartError(
                    f"{self.spec.name} was stopped before it was ready"
                )

    async def _run_once(self) -> tuple[str, float]:
        """Start it and wait for its end: how that was, and for how long it had been ready."""
        self.run += 1
        self.address, self._reason, self._started_s = "", None, self._clock.now()
        self._enter("starting")
        try:
            process = await self._launcher.start(self.spec)
        except (InlayError, OSError) as error:
            return f"cannot be started: {error}", 0.0
        self.process = process
        late = asyncio.ensure_future(self._too_late(process))
        ready_s: float | None = None
        try:
            if self._last_run.done():  # it was stopped while the launcher was at it
                process.kill()
            async for said in process.lines():
                self.address = said.address or self.address
                if said.state == "failed":
                    self._reason = said
                elif said.state == "bound":
                    self._watcher.changed(self, "")
                else:
                    ready_s = self._clock.now()
                    late.cancel()
                    self._on_ready(ready_s - self._started_s)
            how = await process.ended()
        finally:
            late.cancel()
            self.process = None
            self.refused.clear()
            self.weight_version = ""
        if self._reason is not None:
            how = f"failed: {self._reason.message}"
        self._log_end = tuple(process.log_end())
        return how, 0.0 if ready_s is None else self._clock.now() - ready_s

    def _on_ready(self, took_s: float) -> None:
        again = "again " if self._was_ready else ""
        self._was_ready = True
        state: State = "draining" if self._last_run.done() else "ready"
        self._enter(state, f"{self.spec.name} is ready {again}({took_s:.1f} s)")
        if not self._first.done():
            self._first.set_result(None)

    async def _too_late(self, process: Running) -> None:
        limit_s = self._config.start_timeout_s
        await self._sleep(limit_s)
        self._reason = Said(
            state="failed",
            code=EngineStartError.code,
            message=f"it was not ready after {limit_s:g} s",
        )
        process.kill()

    async def _pause(self, wait_s: float) -> None:
        """Wait, or until nothing is to be started again."""
        pause = asyncio.ensure_future(self._sleep(wait_s))
        try:
            await asyncio.wait((pause, self._last_run), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pause

    def _make_failure(self, how: str) -> InlayError:
        end = "".join(f"\n  {line}" for line in self._log_end)
        log = f"; its log ends with:{end}" if end else ""
        if self._reason is not None:
            return restore(
                self._reason.code, f"{self.spec.name} cannot start: {self._reason.message}"
            )
        return EngineStartError(f"{self.spec.name} {how} before it was ready{log}")

    def _end_with_this_run(self) -> None:
        if not self._last_run.done():
            self._last_run.set_result(None)

    def _enter(self, state: State, text: str = "") -> None:
        self.state = state
        self._since_s = self._clock.now()
        self._watcher.changed(self, text)
