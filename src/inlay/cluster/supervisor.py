"""Starts the processes of a deployment, keeps them running, and tells dispatchers who is there."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

from inlay.cluster.control import Kind, Member, Roster, Status
from inlay.cluster.deployment import Deployment, instance_name, missing_phase
from inlay.cluster.groups import MAX_COUNT
from inlay.cluster.keeper import KeepConfig, Keeper, Sleep
from inlay.cluster.launch.launcher import Launcher, ProcessSpec
from inlay.core.clock import Clock, SystemClock
from inlay.core.errors import DeploymentError
from inlay.core.instance_messages import Role

_STAGES: tuple[tuple[Kind, ...], ...] = (("master",), ("node",), ("instance", "dispatcher"))
_STOPS: tuple[Kind, ...] = ("dispatcher", "instance", "node", "master")


class Specs(Protocol):
    """What the processes of a deployment are."""

    def all(self) -> Sequence[ProcessSpec]:
        """Those that its file asks for."""
        ...

    def instance(self, group: str, index: int, role: Role | None = None) -> ProcessSpec:
        """One instance of a group, in the group's role or another."""
        ...


class Supervisor:
    """All processes of one deployment. Its methods are called on one event loop.

    Args:
        url: where clients reach it, for `status`.
        say: is given a line for people at each change.

    Attributes:
        roster: all instances, as dispatchers are to know them.
        on_roster: is called when that is another one.
    """

    def __init__(
        self,
        deployment: Deployment,
        specs: Specs,
        launcher: Launcher,
        *,
        url: str = "",
        say: Callable[[str], None] = lambda _: None,
        keep: KeepConfig | None = None,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.roster = Roster(number=0, members=())
        self.on_roster: Callable[[Roster], None] = lambda _: None
        self._deployment = deployment
        self._specs = specs
        self._launcher = launcher
        self._url = url
        self._say = say
        self._keep = keep or KeepConfig(start_timeout_s=deployment.start_timeout_s)
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._began_s = self._clock.now()
        self._keepers: dict[str, Keeper] = {}
        self._followers: set[str] = set()
        # Of instances that drain: dispatchers which have no request there, and whether all have.
        self._without: dict[str, set[str]] = {}
        self._empty: dict[str, asyncio.Event] = {}
        self._started = self._stopping = False

    async def start(self) -> None:
        """Start all; returns when they are ready.

        Raises:
            InlayError: one of them cannot start. The others go on: call `stop`.
        """
        specs = self._specs.all()
        for kinds in _STAGES:
            self._check_going()
            stage = [self._launch(spec) for spec in specs if spec.kind in kinds]
            await _all(keeper.ready() for keeper in stage)
        self._started = True

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop all, those first that need others; kills where `at_once` says so."""
        self._stopping = True
        for kinds in ((kind,) for kind in _STOPS) if not at_once else (_STOPS,):
            stage = [one for one in self._keepers.values() if one.spec.kind in kinds]
            await _all(keeper.stop(at_once=at_once) for keeper in stage)
        await self._launcher.close()

    async def scale(self, group: str, count: int) -> str:
        """Have so many instances in a group; returns when new ones are ready and others gone.

        Raises:
            DeploymentError: there is no such group, or a phase would have no instance.
            InlayError: a new one cannot start; it is forgotten.
        """
        self._check_going()
        if group not in self._deployment.instances:
            if group in self._deployment.foreign:
                raise DeploymentError(
                    f"{group} is started by somebody else: drain it, or let it be"
                )
            known = ", ".join(self._deployment.instances)
            raise DeploymentError(f"there is no group {group!r} of instances: groups are {known}")
        if not 0 <= count <= MAX_COUNT:
            raise DeploymentError(f"{group}={count}: write a number in 0..{MAX_COUNT}")
        staying = [k for k in self._instances() if k.spec.group == group and k.state != "draining"]
        begin = len(staying)
        leaving = staying[count:]
        self._check_phases(without=leaving)
        new = [self._launch(self._free_instance(group)) for _ in range(count - begin)]
        await _all(
            [*(self._begin(keeper) for keeper in new), *(self._leave(one) for one in leaving)]
        )
        return f"{group}: {begin} -> {count} instances"

    async def drain(self, instance: str) -> str:
        """Give an instance nothing new, and stop it when it has nothing; returns then.

        Raises:
            DeploymentError: there is none, or a phase would have no instance.
        """
        keeper = self._instance(instance)
        self._check_phases(without=[keeper])
        await self._leave(keeper)
        return f"{instance} is gone"

    def change_role(self, instance: str, role: Role) -> str:
        """Let an instance have another role. Dispatchers tell it so.

        Raises:
            DeploymentError: there is none, or a phase would have no instance.
        """
        keeper = self._instance(instance)
        if keeper.spec.group in self._deployment.foreign:
            raise DeploymentError(
                f"{instance} is an engine of another system, which computes prompts and outputs: "
                "it has no other role"
            )
        self._check_phases(without=[keeper], roles=[role])
        spec = keeper.spec
        index = int(spec.name.removeprefix(f"{spec.group}-"))
        keeper.spec = self._specs.instance(spec.group, index, role)
        self.changed(keeper, f"{instance} is for {role} now")
        return f"{instance}: {spec.role} -> {role}"

    def status(self) -> Status:
        """How all processes are."""
        return Status(
            deployment=self._deployment.name,
            model=self._deployment.model or "the demo model",
            url=self._url,
            pid=os.getpid(),
            uptime_s=self._clock.now() - self._began_s,
            processes=tuple(keeper.status() for keeper in self._keepers.values()),
            started=self._started,
        )

    # What dispatchers say

    def follow(self, dispatcher: str) -> None:
        """A dispatcher gets the roster from now on."""
        self._followers.add(dispatcher)

    def unfollow(self, dispatcher: str) -> None:
        """A dispatcher is gone, and its requests with it."""
        self._followers.discard(dispatcher)
        for keeper in self._instances():
            keeper.refused.pop(dispatcher, None)
        for instance in self._empty:
            self._check_empty(instance)

    def drained(self, dispatcher: str, instance: str, run: int) -> None:
        """A dispatcher has no request at an instance that drains."""
        keeper = self._keepers.get(instance)
        if instance in self._without and keeper is not None and keeper.run == run:
            self._without[instance].add(dispatcher)
            self._check_empty(instance)

    def stalled(self, instance: str, run: int, silent_s: float) -> None:
        """A dispatcher says that an instance stands still; it is started again."""
        keeper = self._keepers.get(instance)
        if keeper is not None and keeper.run == run and keeper.state in ("ready", "draining"):
            keeper.restart(f"it said nothing for {silent_s:g} s")

    def differs(self, dispatcher: str, instance: str, run: int, difference: str) -> None:
        """A dispatcher sends an instance nothing, since it is not like the others."""
        keeper = self._keepers.get(instance)
        if keeper is not None and keeper.run == run and keeper.state in ("ready", "draining"):
            if difference not in keeper.refused.values():
                self.changed(keeper, f"{instance} is refused: {difference}")
            keeper.refused[dispatcher] = difference

    def serves(self, instance: str, run: int, version: str) -> None:
        """Which weights compute an instance's new requests."""
        keeper = self._keepers.get(instance)
        if keeper is not None and keeper.run == run:
            keeper.weight_version = version

    def changed(self, keeper: Keeper, text: str) -> None:
        """A process did; see `inlay.cluster.keeper.Watcher`."""
        if text and not self._stopping:
            self._say(text)
        if keeper.spec.kind == "dispatcher" and keeper.state != "ready":
            self.unfollow(keeper.spec.name)
        if keeper.spec.kind == "instance":
            self._renew_roster()

    # Below

    def _renew_roster(self) -> None:
        members = tuple(
            Member(
                name=one.spec.name,
                role=one.spec.role,  # type: ignore[arg-type]
                address=one.address,
                run=one.run,
                state=one.state,
            )
            for one in self._instances()
        )
        if members != self.roster.members and not self._stopping:
            self.roster = Roster(number=self.roster.number + 1, members=members)
            self.on_roster(self.roster)

    def _launch(self, spec: ProcessSpec) -> Keeper:
        keeper = Keeper(
            spec, self._launcher, self._keep, self, clock=self._clock, sleep=self._sleep
        )
        self._keepers[spec.name] = keeper
        return keeper

    async def _begin(self, keeper: Keeper) -> None:
        """Wait until a new instance is ready; one that cannot start is forgotten."""
        try:
            await keeper.ready()
        except BaseException:
            await keeper.stop()
            self._forget(keeper)
            raise

    async def _leave(self, keeper: Keeper) -> None:
        """Drain an instance and stop it."""
        name = keeper.spec.name
        if name in self._empty:
            raise DeploymentError(f"{name} drains already: inlay status shows when it is gone")
        served = keeper.state == "ready"
        empty = self._empty[name] = asyncio.Event()
        self._without[name] = set()
        keeper.drain()
        try:
            if served:
                self._check_empty(name)
                await self._until(empty, self._deployment.drain_s)
            await keeper.stop()
        finally:
            del self._empty[name], self._without[name]
        self._say(f"{name} is gone")
        self._forget(keeper)

    async def _until(self, event: asyncio.Event, limit_s: float) -> None:
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._sleep(limit_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await one

    def _check_empty(self, instance: str) -> None:
        if self._followers <= self._without[instance]:
            self._empty[instance].set()

    def _forget(self, keeper: Keeper) -> None:
        del self._keepers[keeper.spec.name]
        self._renew_roster()

    def _instances(self) -> Iterator[Keeper]:
        return (one for one in self._keepers.values() if one.spec.kind == "instance")

    def _instance(self, name: str) -> Keeper:
        keeper = self._keepers.get(name)
        if keeper is None or keeper.spec.kind != "instance":
            known = ", ".join(one.spec.name for one in self._instances())
            raise DeploymentError(f"there is no instance {name!r}: instances are {known}")
        return keeper

    def _free_instance(self, group: str) -> ProcessSpec:
        """The instance of a group with the lowest number that is not taken."""
        index = 0
        while instance_name(group, index) in self._keepers:
            index += 1
        return self._specs.instance(group, index)

    def _check_going(self) -> None:
        if self._stopping:
            raise DeploymentError(f"deployment {self._deployment.name!r} is stopping")

    def _check_phases(self, without: Sequence[Keeper], roles: Sequence[Role] = ()) -> None:
        """That both phases have an instance when those of `without` are gone."""
        left = [
            one.spec.role
            for one in self._instances()
            if one not in without and one.state != "draining"
        ]
        missing = missing_phase([*left, *roles])  # type: ignore[list-item]
        if without and missing:
            names = ", ".join(one.spec.name for one in without)
            raise DeploymentError(
                f"without {names} no instance would be for {missing}: add another one first, for "
                "example with inlay scale"
            )


async def _all(
    waits: "Iterator[Coroutine[Any, Any, None]] | Sequence[Coroutine[Any, Any, None]]",
) -> None:
    """Wait for all; when one fails the others go on, and its error is raised at the end."""
    errors = [
        one
        for one in await asyncio.gather(*waits, return_exceptions=True)
        if isinstance(one, BaseException)
    ]
    if errors:
        raise errors[0]
