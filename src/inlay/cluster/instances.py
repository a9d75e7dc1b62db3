"""The instances of a deployment, as a dispatcher knows them.

The roster says who is to be there; a link to each says who is. The first instance that introduces
itself sets what the others must be like: those that differ in anything on which text or blocks
depend are listed with the difference and get no requests.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Protocol

import zmq

from inlay.cluster.chooser import Chooser
from inlay.cluster.control import Member, Roster
from inlay.cluster.instance_link import InstanceLink
from inlay.cluster.requests import Attempt
from inlay.core.clock import Clock
from inlay.core.errors import EngineError, InlayError, NoInstanceError
from inlay.core.instance_messages import (
    PROTOCOL,
    FromInstance,
    InstanceInfo,
    KvEvents,
    KvSnapshot,
    KvTarget,
    LoadReport,
    SetRole,
    ToInstance,
)
from inlay.core.messages import (
    EngineStats,
    LoadProgress,
    OutputBatch,
    RequestOutput,
    StatsRequest,
)

log = logging.getLogger(__name__)

Connect = Callable[[str], "zmq.Socket[bytes]"]


class Handler(Protocol):
    """Who has requests at the instances."""

    def output(self, instance: "Instance", output: RequestOutput) -> None:
        """An instance said something about a request."""
        ...

    def target(self, instance: "Instance", target: KvTarget) -> None:
        """An instance says where the KV of a prompt is to go."""
        ...

    def lost(self, instance: "Instance", error: InlayError) -> None:
        """An instance is gone, with all that it did for us."""
        ...

    def drained(self, instance: "Instance") -> None:
        """An instance that is draining has nothing more of ours."""
        ...


class Instance:
    """One instance: the owner of the link to it.

    Attributes:
        member: what the roster says of it.
        info: what it says of itself; None before, and while it is gone.
        slot: its place in what choices are made from; None while it takes no requests.
        difference: why it is refused; empty if it is not.
        report: of its load.
        progress: how much of its weights is in memory.
        attempts: of requests that are there, by the id that they have there.
    """

    def __init__(self, member: Member, among: "Instances", connect: Connect, name: str) -> None:
        self.member = member
        self.info: InstanceInfo | None = None
        self.slot: int | None = None
        self.difference = ""
        self.report: LoadReport | None = None
        self.progress: LoadProgress | None = None
        self.attempts: dict[str, Attempt] = {}
        self._among = among
        self._stats: deque[asyncio.Future[EngineStats]] = deque()
        self._link = InstanceLink(lambda: connect(member.address), name, self)

    @property
    def name(self) -> str:
        """Unique in the deployment."""
        return self.member.name

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
            self._among.emptied(self)

    async def stats(self, timeout_s: float) -> EngineStats:
        """Gauges and totals, after all messages sent so far.

        Raises:
            EngineError: it did not answer, or is gone.
        """
        future: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._stats.append(future)
        self.send(StatsRequest())
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise EngineError(f"{self.name} did not answer in {timeout_s:g} s") from None

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
                    self._among.handler.output(self, output)
            case KvTarget():
                self._among.handler.target(self, message)
            case KvSnapshot() | KvEvents() | LoadReport():
                if isinstance(message, LoadReport):
                    self.report = message
                self._among.learn(self, message)
            case InstanceInfo():
                self.info = message
                self._among.introduced(self)
            case LoadProgress():
                self.progress = message
            case EngineStats():
                future = self._stats.popleft()
                if not future.done():
                    future.set_result(message)

    def lost(self, reason: str) -> None:
        """See `LinkOwner`."""
        log.warning("instance %s: %s", self.name, reason)
        self._forget(EngineError(f"{self.name}: {reason}"))

    def _forget(self, error: InlayError) -> None:
        self.info = self.report = self.progress = None
        self.difference = ""
        self._among.departed(self, error)
        while self._stats:
            future = self._stats.popleft()
            if not future.done():
                future.set_exception(error)


class Instances:
    """All instances of the roster.

    Args:
        chooser: is told who is there and what they say.
        handler: of requests; set it before the first roster.
        connect: makes a DEALER that is connected to an address.
        secret: of the deployment, by which blocks are named.
        name: the dispatcher's.

    Attributes:
        reference: what the others must be like; None before the first instance.
    """

    handler: Handler

    def __init__(
        self, chooser: Chooser, connect: Connect, *, secret: bytes, name: str, clock: Clock
    ) -> None:
        self._chooser = chooser
        self._connect = connect
        self._secret = secret
        self._name = name
        self._clock = clock
        self._present: dict[str, Instance] = {}
        self._members: dict[str, Member] = {}
        self._slots: dict[int, Instance] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self.reference: InstanceInfo | None = None

    def __iter__(self) -> Iterator[Instance]:
        return iter(list(self._present.values()))

    def at(self, slot: int) -> Instance:
        """The instance that has a slot."""
        return self._slots[slot]

    @property
    def usable(self) -> bool:
        """Whether any instance takes requests."""
        return any(instance.takes_requests for instance in self._slots.values())

    def describe(self) -> str:
        """How each instance is, in one line."""
        if not self._members:
            return "no instance is known"
        return ", ".join(f"{name} is {self.state(name)}" for name in self.names)

    def state(self, name: str) -> str:
        """How an instance of the roster is."""
        instance = self._present.get(name)
        return self._members[name].state if instance is None else instance.state

    @property
    def names(self) -> list[str]:
        """Of all that the roster has, in order."""
        return sorted(self._members)

    def find(self, name: str) -> Instance | None:
        """An instance that there is a link to."""
        return self._present.get(name)

    async def wait(self, timeout_s: float) -> None:
        """Until an instance can take requests.

        Raises:
            NoInstanceError: none could in that time.
        """
        if self.usable:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise NoInstanceError(
                f"no instance takes requests ({self.describe()}): try again later"
            ) from None
        finally:
            self._waiting.discard(future)

    def follow(self, roster: Roster) -> None:
        """Be connected to those, and only those, that the roster has."""
        members = {member.name: member for member in roster.members if member.state != "gone"}
        self._members = members
        for instance in self:
            member = members.get(instance.name)
            if member is None or _where(member) != _where(instance.member):
                del self._present[instance.name]
                instance.close()
            else:
                instance.member = member
                self._settle(instance)
        for member in members.values():
            if member.name not in self._present and member.state in ("ready", "draining"):
                self._present[member.name] = Instance(member, self, self._connect, self._name)
        self._wake()

    def close(self) -> None:
        """Leave all."""
        self.follow(Roster(number=0, members=()))

    # What instances hear

    def introduced(self, instance: Instance) -> None:
        """An instance has said what it is, for the first time or again."""
        info = instance.info
        assert info is not None
        if self.reference is None:
            self.reference = info
        instance.difference = difference(self.reference, info, self._secret)
        if instance.difference:
            log.error("instance %s is refused: %s", instance.name, instance.difference)
            return
        if instance.slot is None:
            instance.slot = self._chooser.join(info, self._clock.now())
            self._slots[instance.slot] = instance
            log.info("instance joined", extra={"instance": info.name, "run": info.run_id})
        else:
            self._chooser.changed(instance.slot, info)
        self._settle(instance)
        self._wake()

    def learn(self, instance: Instance, message: KvSnapshot | KvEvents | LoadReport) -> None:
        """An instance says what it has, or has to do."""
        if instance.slot is not None:
            self._chooser.learn(instance.slot, message, self._clock.now())

    def emptied(self, instance: Instance) -> None:
        """An instance has no attempt any more."""
        if instance.member.state == "draining":
            self.handler.drained(instance)

    def departed(self, instance: Instance, error: InlayError) -> None:
        """An instance is gone; its slot may be given to another one now."""
        self.handler.lost(instance, error)
        if instance.slot is not None:
            del self._slots[instance.slot]
            self._chooser.leave(instance.slot)
            instance.slot = None

    def _settle(self, instance: Instance) -> None:
        """Bring what the roster wants of an instance to where it matters."""
        member, info = instance.member, instance.info
        if info is None or instance.slot is None:
            return
        if info.role != member.role:
            instance.send(SetRole(member.role))
        if member.state == "draining":
            self._chooser.drain(instance.slot)
        if not instance.attempts:
            self.emptied(instance)

    def _wake(self) -> None:
        if self.usable:
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)


def difference(reference: InstanceInfo, info: InstanceInfo, secret: bytes) -> str:
    """Why an instance cannot serve beside another one; empty if it can.

    Instances that differ here would give other text, or blocks that nobody else can use.
    """
    ours = blake2b(reference.namespace.key(secret)).digest()[: len(info.key_check)]
    if info.protocol != PROTOCOL:
        return (
            f"it speaks protocol {info.protocol} (Inlay {info.version}), this dispatcher speaks "
            f"{PROTOCOL}: run the same version of Inlay everywhere"
        )
    mine, its = _facts(reference), _facts(info)
    unlike = [
        f"{name} is {its[name]}, that of {reference.name} is {value}"
        for name, value in mine.items()
        if its[name] != value
    ]
    if unlike:
        return "; ".join(unlike)
    if info.key_check != ours:
        return "its cache.secret is not the deployment's"
    return ""


def _facts(info: InstanceInfo) -> dict[str, object]:
    space = info.namespace
    layout = {
        f"kv_format.{name}": getattr(space.kv_format, name)
        for name in space.kv_format.__struct_fields__
        if name not in ("tp_degree", "tp_rank")
    }
    return {
        "the model's fingerprint": space.fingerprint,
        "weight_version": space.weight_version,
        "weight_format": space.weight_format,
        "adapter": space.adapter,
        "vocab_size": info.engine.vocab_size,
        "max_context_tokens": info.engine.max_context_tokens,
        **layout,
    }


def _where(member: Member) -> tuple[str, int]:
    return member.address, member.run
