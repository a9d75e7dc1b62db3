"""The instances of a deployment, as a dispatcher knows them.

The roster says who is to be there; a link to each says who is. The first instance that introduces
itself sets what the others must be like: those that differ in anything on which text or blocks
depend are listed with the difference and get no requests.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from inlay.cluster.chooser import Chooser
from inlay.cluster.compatibility import difference
from inlay.cluster.control import Member, Roster
from inlay.cluster.instance import Connect, Handler, Instance
from inlay.cluster.loads import Loads
from inlay.cluster.returns import Returns
from inlay.cluster.weight_groups import WeightGroups
from inlay.core.clock import Clock
from inlay.core.errors import InlayError, NoInstanceError
from inlay.core.instance_messages import (
    InstanceInfo,
    KvEvents,
    KvSnapshot,
    LoadReport,
    SetRole,
)

log = logging.getLogger(__name__)


class Instances:
    """All instances of the roster.

    Args:
        chooser: is told who is there and what they say.
        handler: of requests; set it before the first roster.
        secret: of the deployment, by which blocks are named.
        name: the dispatcher's.
        refused: told of an instance that gets no requests, with its `difference`.
        met: told of an instance that has said what it is, for the first time or again.

    Attributes:
        loads: how loaded they were of late.
        weights: which of them have which.
        joined: told of an instance that takes requests from now on.
        reference: what the others must be like; None before the first instance.
    """

    handler: Handler

    def __init__(
        self,
        chooser: Chooser,
        connect: Connect,
        *,
        secret: bytes,
        name: str,
        clock: Clock,
        refused: Callable[[Instance], None] = lambda instance: None,
        met: Callable[[Instance], None] = lambda instance: None,
    ) -> None:
        self._chooser = chooser
        self._connect = connect
        self._secret = secret
        self._name = name
        self._clock = clock
        self._refused = refused
        self._met = met
        self._present: dict[str, Instance] = {}
        self._members: dict[str, Member] = {}
        self._slots: dict[int, Instance] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._returns = Returns()
        self.loads = Loads()
        self.weights = WeightGroups()
        self.joined: Callable[[Instance], None] = lambda instance: None
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

    @property
    def retry_after_s(self) -> float:
        """When it makes sense to try again, while no instance takes requests."""
        return self._returns.expected_s(self._clock.now())

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

    def member(self, name: str) -> Member:
        """What the roster says of an instance that it has."""
        return self._members[name]

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
                f"no instance takes requests ({self.describe()}): try again later",
                self.retry_after_s,
            ) from None
        finally:
            self._waiting.discard(future)

    def follow(self, roster: Roster) -> None:
        """Be connected to those, and only those, that the roster has."""
        members = {member.name: member for member in roster.members if member.state != "gone"}
        for name in self._members.keys() - members.keys():
            self._returns.forget(name)
        for name in members.keys() - self._members.keys():
            self._returns.away(name, self._clock.now())
        self._members = members
        self.loads.keep(members.keys())
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
            self.refused(instance)
            return
        self._met(instance)
        is_new = instance.slot is None
        if instance.slot is None:
            instance.slot = self._chooser.join(info, self._clock.now())
            self._slots[instance.slot] = instance
            self._returns.back(instance.name, self._clock.now())
            log.info("instance joined", extra={"instance": info.name, "run": info.run_id})
        else:
            self._chooser.changed(instance.slot, info)
        self._settle(instance)
        self._wake()
        if is_new:
            self.joined(instance)

    def refused(self, instance: Instance) -> None:
        """An instance is of no use."""
        log.error("instance %s is refused: %s", instance.name, instance.difference)
        self._refused(instance)

    def learn(self, instance: Instance, message: KvSnapshot | KvEvents | LoadReport) -> None:
        """An instance says what it has, or has to do."""
        if isinstance(message, LoadReport):
            self.loads.saw(instance.name, message, self._clock.now())
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
            if instance.name in self._members:
                self._returns.away(instance.name, self._clock.now())
            self._chooser.leave(instance.slot)
            self.weights.remove(instance.slot)
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
        if instance.takes_requests:
            self.weights.put(instance.slot, info)
        else:
            self.weights.remove(instance.slot)
        if not instance.attempts:
            self.emptied(instance)

    def _wake(self) -> None:
        if self.usable:
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)


def _where(member: Member) -> tuple[str, int]:
    return member.address, member.run
