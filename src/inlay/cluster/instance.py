"""One instance, as a dispatcher knows it."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import zmq

from inlay.cluster.control import Member
from inlay.cluster.instance_link import InstanceLink
from inlay.cluster.requests import Attempt
from inlay.core.errors import EngineError, InlayError, WeightsConflictError
from inlay.core.instance_messages import (
    FromInstance,
    InstanceInfo,
    KvEvents,
    KvLost,
    KvSnapshot,
    KvTarget,
    LoadReport,
    ToInstance,
)
from inlay.core.messages import (
    EngineStats,
    LoadProgress,
    OutputBatch,
    PausedRollouts,
    PauseRollouts,
    PauseSession,
    RequestOutput,
    ResumeRollouts,
    ResumeSession,
    SessionBlocks,
    StatsRequest,
    SwapWeights,
    WeightsSwapped,
)

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", EngineStats, SessionBlocks, PausedRollouts)

Connect = Callable[[str], "zmq.Socket[bytes]"]
"""Makes a DEALER that is connected to an address."""


class Handler(Protocol):
    """Who has requests at the instances."""

    def output(self, instance: "Instance", output: RequestOutput) -> None:
        """An instance said something about a request."""
        ...

    def target(self, instance: "Instance", target: KvTarget) -> None:
        """An instance says where the KV of a prompt is to go."""
        ...

    def kv_lost(self, instance: "Instance", message: KvLost) -> None:
        """An instance computes a prompt itself that another one was to send it."""
        ...

    def lost(self, instance: "Instance", error: InlayError) -> None:
        """An instance is gone, with all that it did for us."""
        ...

    def drained(self, instance: "Instance") -> None:
        """An instance that is draining has nothing more of ours."""
        ...


class Owner(Protocol):
    """Who has the instances."""

    handler: Handler

    def introduced(self, instance: "Instance") -> None:
        """It has said what it is, for the first time or again."""
        ...

    def refused(self, instance: "Instance") -> None:
        """It is of no use; its `difference` says why."""
        ...

    def learn(self, instance: "Instance", message: KvSnapshot | KvEvents | LoadReport) -> None:
        """It says what it has, or has to do."""
        ...

    def emptied(self, instance: "Instance") -> None:
        """It has no attempt any more."""
        ...

    def departed(self, instance: "Instance", error: InlayError) -> None:
        """It is gone."""
        ...


class Instance:
    """One instance: the owner of the link to it.

    Attributes:
        member: what the roster says of it.
        info: what it says of itself; None before, and while it is gone.
        slot: its place in what choices are made from; None while it takes no requests.
        difference: why it is refused; empty if it is not.
        report: of its load.
        silent_s: for how long it has reported nothing, as `stalls` counts it; None before its first
            report.
        progress: how much of its weights is in memory.
        attempts: of requests that are there, by the id that they have there.
    """

    def __init__(self, member: Member, owner: Owner, connect: Connect, name: str) -> None:
        self.member = member
        self.info: InstanceInfo | None = None
        self.slot: int | None = None
        self.difference = ""
        self.report: LoadReport | None = None
        self.silent_s: float | None = None
        self.progress: LoadProgress | None = None
        self.attempts: dict[str, Attempt] = {}
        self._owner = owner
        self._asked: deque[asyncio.Future[Any]] = deque()  # answered in this order
        self._swap: asyncio.Future[WeightsSwapped] | None = None
        self._link = InstanceLink(lambda: connect(member.address), name, self)

    @property
    def name(self) -> str:
        """Unique in the deployment."""
        return self.member.name

    @property
    def reached(self) -> bool:
        """Whether it is not known to be out of reach; see `InstanceLink`."""
        return self._link.reached

    @property
    def takes_requests(self) -> bool:
        """Whether new ones may be sent there."""
        return self.slot is not None and self.member.state == "ready"

    @property
    def state(self) -> str:
        """How it is, in words."""
        if self.difference:
            return f"refused: {self.difference}"
        if self.info is None:
            return self._link.state if self._link.state != "connected" else "loading"
        return self.member.state

    def send(self, message: ToInstance) -> bool:
        """Send without waiting; False if it cannot be reached."""
        return self._link.send(message)

    def release(self, wire_id: str) -> None:
        """An attempt is over here."""
        if self.attempts.pop(wire_id, None) is not None and not self.attempts:
            self._owner.emptied(self)

    async def stats(self, timeout_s: float) -> EngineStats:
        """Gauges and totals, after all messages sent so far.

        Raises:
            EngineError: it did not answer, or is gone.
        """
        return await self._ask(StatsRequest(), EngineStats, timeout_s)

    async def hint_session(self, session: str, *, paused: bool, timeout_s: float) -> SessionBlocks:
        """A session waits for something else, or its next turn is near. Raises as `stats`."""
        hint = PauseSession(session) if paused else ResumeSession(session)
        return await self._ask(hint, SessionBlocks, timeout_s)

    async def rollouts(
        self, message: PauseRollouts | ResumeRollouts, timeout_s: float
    ) -> PausedRollouts:
        """Generations stop, or go on. Raises as `stats`."""
        return await self._ask(message, PausedRollouts, timeout_s)

    async def swap_weights(self, message: SwapWeights, timeout_s: float) -> WeightsSwapped:
        """Replace its weights while it serves; says what became of it.

        Raises:
            WeightsConflictError: we have asked before, and it has not answered.
            EngineError: it did not answer, or is gone.
        """
        if self.info is None:
            raise EngineError(f"{self.name} is {self.state}")
        if self._swap is not None:
            raise WeightsConflictError(f"{self.name} is loading weights: update again later")
        self._swap = future = asyncio.get_running_loop().create_future()
        try:
            self.send(message)
            return await asyncio.wait_for(asyncio.shield(future), timeout_s)
        except TimeoutError:
            raise EngineError(f"{self.name} has no new weights after {timeout_s:g} s") from None
        finally:
            if future.done():
                self._swap = None
            else:  # we gave up; it has not
                future.add_done_callback(self._forget_swap)

    def _forget_swap(self, future: "asyncio.Future[WeightsSwapped]") -> None:
        self._swap = None
        if not future.cancelled():
            future.exception()

    async def _ask(self, message: ToInstance, answer: type[Answer], timeout_s: float) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self.send(message)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise EngineError(f"{self.name} did not answer in {timeout_s:g} s") from None

    def give_up(self, reason: str) -> None:
        """It is as good as lost. It is there again when it answers on a new connection."""
        self.silent_s = 0.0
        if self.info is not None:
            self._link.renew(reason)

    def close(self) -> None:
        """Leave it."""
        self._link.close()
        self._forget(EngineError(f"{self.name} is not in the deployment any more"))

    # What the link hears

    def received(self, message: FromInstance) -> None:
        """See `LinkOwner`."""
        match message:
            case OutputBatch():
                for output in message.outputs:
                    self._owner.handler.output(self, output)
            case KvTarget():
                self._owner.handler.target(self, message)
            case KvLost():
                self._owner.handler.kv_lost(self, message)
            case KvSnapshot() | KvEvents() | LoadReport():
                if isinstance(message, LoadReport):
                    self.report, self.silent_s = message, 0.0
                self._owner.learn(self, message)
            case InstanceInfo():
                self.info = message
                self._owner.introduced(self)
            case LoadProgress():
                self.progress = message
            case WeightsSwapped():
                if self._swap is not None and not self._swap.done():
                    self._swap.set_result(message)
            case EngineStats() | SessionBlocks() | PausedRollouts():
                future = self._asked.popleft()
                if not future.done():
                    future.set_result(message)

    def lost(self, reason: str) -> None:
        """See `LinkOwner`."""
        log.warning("instance %s: %s", self.name, reason)
        self._forget(EngineError(f"{self.name}: {reason}"))
        if self._link.closed:  # it would be of no use after another try
            self.difference = reason
            self._owner.refused(self)

    def _forget(self, error: InlayError) -> None:
        self.info = self.report = self.progress = None
        self.difference = ""
        self._owner.departed(self, error)
        if self._swap is not None and not self._swap.done():
            self._swap.set_exception(error)
        while self._asked:
            future = self._asked.popleft()
            if not future.done():
                future.set_exception(error)
