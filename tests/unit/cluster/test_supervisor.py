"""The supervisor, over processes that a test plays."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from inlay.cluster.control import Kind, Roster
from inlay.cluster.deployment import Deployment, instance_name
from inlay.cluster.groups import InstanceGroup
from inlay.cluster.keeper import KeepConfig
from inlay.cluster.launch.launcher import ProcessSpec
from inlay.cluster.supervisor import Supervisor
from inlay.core.errors import DeploymentError, EngineStartError, ModelNotFoundError
from inlay.core.instance_messages import Role
from tests.unit.cluster.scripted_launcher import ScriptedLauncher, Sleeps, settle

DEPLOYMENT = Deployment(
    instances={
        "prefill": InstanceGroup(role="prefill", count=1),
        "decode": InstanceGroup(role="decode", count=2),
    },
    drain_s=60.0,
)


class Specs:
    def all(self) -> Sequence[ProcessSpec]:
        return (
            spec("master-0", "master"),
            spec("node-n0", "node"),
            self.instance("prefill", 0),
            self.instance("decode", 0),
            self.instance("decode", 1),
            spec("dispatcher-0", "dispatcher"),
        )

    def instance(self, group: str, index: int, role: Role | None = None) -> ProcessSpec:
        role = role or DEPLOYMENT.instances[group].role
        name = instance_name(group, index)
        return spec(name, "instance", group=group, role=role, setup={"role": role})


def spec(name: str, kind: Kind, **more: Any) -> ProcessSpec:
    return ProcessSpec(name=name, kind=kind, module="m", **{"setup": {}, **more})


class World:
    """A supervisor and what is around it."""

    def __init__(self) -> None:
        self.sleeps = Sleeps()
        self.launcher = ScriptedLauncher()
        self.said: list[str] = []
        self.rosters: list[Roster] = []
        self.supervisor = Supervisor(
            DEPLOYMENT,
            Specs(),
            self.launcher,
            url="http://here",
            say=self.said.append,
            keep=KeepConfig(start_timeout_s=100.0),
            clock=self.sleeps.clock,
            sleep=self.sleeps.sleep,
        )
        self.supervisor.on_roster = self.rosters.append

    async def ready(self, *names: str) -> None:
        for name in names:
            self.launcher.last(name).say("ready", address=f"tcp://{name}")
        await settle()

    async def end(self, name: str, how: str = "was killed by SIGKILL") -> None:
        self.launcher.last(name).end(how)
        await settle()

    def states(self) -> dict[str, str]:
        return {one.name: one.state for one in self.supervisor.roster.members}

    def names(self) -> list[str]:
        return [one.spec.name for one in self.launcher.started]


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    """All is ready, and a dispatcher follows."""
    world = World()
    starting = asyncio.ensure_future(world.supervisor.start())
    await settle()
    await world.ready("master-0")
    await world.ready("node-n0")
    await world.ready("prefill-0", "decode-0", "decode-1", "dispatcher-0")
    await asyncio.wait_for(starting, 30)
    world.supervisor.follow("dispatcher-0")
    yield world
    await world.supervisor.stop()


async def test_starts_in_order() -> None:
    world = World()
    starting = asyncio.ensure_future(world.supervisor.start())
    await settle()
    assert world.names() == ["master-0"]
    await world.ready("master-0")
    assert world.names() == ["master-0", "node-n0"]
    await world.ready("node-n0")
    assert set(world.names()[2:]) == {"prefill-0", "decode-0", "decode-1", "dispatcher-0"}
    assert set(world.states().values()) == {"starting"}
    await world.ready("prefill-0", "decode-0", "decode-1")
    assert set(world.states().values()) == {"ready"} and not starting.done()
    await world.ready("dispatcher-0")
    await asyncio.wait_for(starting, 30)
    assert world.supervisor.status().started
    await world.supervisor.stop()
    assert world.launcher.closed


async def test_rosters_are_whole_and_numbered() -> None:
    async with running() as world:
        numbers = [roster.number for roster in world.rosters]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(a.members != b.members for a, b in pairwise(world.rosters))
        last = world.rosters[-1].members
        assert [(m.name, m.role, m.address, m.run) for m in last] == [
            ("prefill-0", "prefill", "tcp://prefill-0", 1),
            ("decode-0", "decode", "tcp://decode-0", 1),
            ("decode-1", "decode", "tcp://decode-1", 1),
        ]


async def test_what_ends_is_started_again_later_and_later() -> None:
    async with running() as world:
        for run, wait_s in enumerate((0.1, 0.2, 0.4, 0.8), start=2):
            await world.end("decode-0")
            assert world.states()["decode-0"] == "starting"
            assert world.sleeps.waits == [pytest.approx(wait_s)]
            await world.sleeps.advance(wait_s)
            assert world.launcher.last("decode-0").pid == world.supervisor.status().processes[3].pid
            await world.ready("decode-0")
            member = next(m for m in world.supervisor.roster.members if m.name == "decode-0")
            assert (member.run, member.state) == (run, "ready")
        await world.sleeps.advance(3.5)  # it ran well
        await world.end("decode-0")
        assert world.sleeps.waits == [pytest.approx(0.1)]
        assert any("was killed by SIGKILL; it starts again in 0.1 s" in line for line in world.said)
        for _ in range(12):
            await world.sleeps.advance(10)
            await world.end("decode-0")
        assert world.sleeps.waits == [pytest.approx(10)]


async def test_what_never_was_ready_says_why() -> None:
    world = World()
    starting = asyncio.ensure_future(world.supervisor.start())
    await settle()
    for wait_s in (0.1, 0.2):
        await world.end("master-0", "ended with exit status 1")
        await world.sleeps.advance(wait_s)
    await world.end("master-0", "ended with exit status 1")
    with pytest.raises(EngineStartError, match="exit status 1 before it was ready; its log ends"):
        await asyncio.wait_for(starting, 30)
    await world.supervisor.stop()


async def test_a_reason_not_to_start_is_final() -> None:
    world = World()
    starting = asyncio.ensure_future(world.supervisor.start())
    await settle()
    world.launcher.last("master-0").say("failed", code="model_not_found", message="no such thing")
    await world.end("master-0")
    with pytest.raises(ModelNotFoundError, match="master-0 cannot start: no such thing"):
        await asyncio.wait_for(starting, 30)
    await world.supervisor.stop()


async def test_what_is_not_ready_in_time_is_killed() -> None:
    world = World()
    starting = asyncio.ensure_future(world.supervisor.start())
    await settle()
    await world.sleeps.advance(100)
    with pytest.raises(EngineStartError, match="was not ready after 100 s"):
        await asyncio.wait_for(starting, 30)
    await world.supervisor.stop()


async def test_what_the_system_does_not_start_is_told() -> None:
    world = World()
    world.launcher.error = OSError(12, "Cannot allocate memory")
    starting = asyncio.ensure_future(world.supervisor.start())
    await settle()
    for wait_s in (0.1, 0.2):
        await world.sleeps.advance(wait_s)
    with pytest.raises(EngineStartError, match="Cannot allocate memory"):
        await asyncio.wait_for(starting, 30)
    await world.supervisor.stop()


async def test_drain_waits_for_the_dispatchers() -> None:
    async with running() as world:
        draining = asyncio.ensure_future(world.supervisor.drain("decode-1"))
        await settle()
        assert world.states()["decode-1"] == "draining"
        world.supervisor.drained("dispatcher-0", "decode-1", 7)  # another run
        world.supervisor.drained("dispatcher-9", "decode-1", 1)  # not one that follows
        await settle()
        assert not world.launcher.last("decode-1").asked_to_stop
        world.supervisor.drained("dispatcher-0", "decode-1", 1)
        assert await asyncio.wait_for(draining, 30) == "decode-1 is gone"
        assert world.launcher.last("decode-1").asked_to_stop
        assert "decode-1" not in world.states()


async def test_drain_waits_no_longer_than_it_may() -> None:
    async with running() as world:
        draining = asyncio.ensure_future(world.supervisor.drain("decode-1"))
        await settle()
        await world.sleeps.advance(60)
        await asyncio.wait_for(draining, 30)


async def test_drain_does_not_wait_for_a_dead_dispatcher() -> None:
    async with running() as world:
        draining = asyncio.ensure_future(world.supervisor.drain("decode-1"))
        await settle()
        await world.end("dispatcher-0")
        await asyncio.wait_for(draining, 30)


async def test_an_instance_that_dies_while_it_drains_stays_away() -> None:
    async with running() as world:
        draining = asyncio.ensure_future(world.supervisor.drain("decode-1"))
        await settle()
        await world.end("decode-1")
        await world.sleeps.advance(60)
        await asyncio.wait_for(draining, 30)
        assert world.names().count("decode-1") == 1


async def test_the_last_instance_for_a_phase_stays() -> None:
    async with running() as world:
        with pytest.raises(DeploymentError, match="no instance would be for prefill"):
            await world.supervisor.drain("prefill-0")
        with pytest.raises(DeploymentError, match="without decode-0, decode-1 no instance would"):
            await world.supervisor.scale("decode", 0)
        with pytest.raises(DeploymentError, match="no instance would be for prefill"):
            world.supervisor.change_role("prefill-0", "decode")
        assert set(world.states().values()) == {"ready"}


async def test_names_that_there_are_not() -> None:
    async with running() as world:
        with pytest.raises(DeploymentError, match="instances are prefill-0, decode-0, decode-1"):
            await world.supervisor.drain("decode-7")
        with pytest.raises(DeploymentError, match="groups are prefill, decode"):
            await world.supervisor.scale("decod", 1)
        with pytest.raises(DeploymentError, match=r"write a number in 0\.\.256"):
            await world.supervisor.scale("decode", 1000)


async def test_scale_up_and_down() -> None:
    async with running() as world:
        scaling = asyncio.ensure_future(world.supervisor.scale("prefill", 3))
        await settle()
        assert not scaling.done()
        await world.ready("prefill-1", "prefill-2")
        assert await asyncio.wait_for(scaling, 30) == "prefill: 1 -> 3 instances"
        scaling = asyncio.ensure_future(world.supervisor.scale("prefill", 2))
        await settle()
        assert world.states()["prefill-2"] == "draining"
        again = asyncio.ensure_future(
            world.supervisor.scale("prefill", 3)
        )  # beside the one leaving
        await settle()
        assert world.names()[-1] == "prefill-3"
        world.supervisor.drained("dispatcher-0", "prefill-2", 1)
        await world.ready("prefill-3")
        await asyncio.wait_for(asyncio.gather(scaling, again), 30)
        assert [n for n in world.states() if n.startswith("pre")] == [
            "prefill-0", "prefill-1", "prefill-3"
        ]  # fmt: skip


async def test_a_new_instance_that_cannot_start_is_forgotten() -> None:
    async with running() as world:
        scaling = asyncio.ensure_future(world.supervisor.scale("decode", 3))
        await settle()
        world.launcher.last("decode-2").say("failed", code="model_not_found", message="gone")
        await world.end("decode-2")
        with pytest.raises(ModelNotFoundError):
            await asyncio.wait_for(scaling, 30)
        assert list(world.states()) == ["prefill-0", "decode-0", "decode-1"]


async def test_a_role_is_changed_and_kept_over_a_restart() -> None:
    async with running() as world:
        assert world.supervisor.change_role("decode-1", "prefill") == "decode-1: decode -> prefill"
        assert world.rosters[-1].members[2].role == "prefill"
        await world.end("decode-1")
        await world.sleeps.advance(0.1)
        assert world.launcher.last("decode-1").spec.setup == {"role": "prefill"}


async def test_an_instance_that_stands_still_is_started_again() -> None:
    async with running() as world:
        world.supervisor.stalled("decode-0", 2, 30.0)  # of another run
        world.supervisor.stalled("decode-7", 1, 30.0)
        await settle()
        assert world.states()["decode-0"] == "ready"
        world.supervisor.stalled("decode-0", 1, 30.0)
        world.supervisor.stalled("decode-0", 1, 30.0)  # so says another dispatcher
        await settle()
        assert "it said nothing for 30 s" in world.said[-1]
        assert world.states()["decode-0"] == "starting"
        await world.sleeps.advance(1.0)
        await world.ready("decode-0")
        assert world.states()["decode-0"] == "ready"
        world.supervisor.stalled("decode-0", 1, 30.0)
        await settle()
        assert world.states()["decode-0"] == "ready"


async def test_an_instance_that_dispatchers_refuse_is_shown() -> None:
    async with running() as world:

        def refused() -> list[str]:
            return [one.refused for one in world.supervisor.status().processes if one.refused]

        world.supervisor.differs("dispatcher-0", "decode-0", 2, "of another run")
        assert not refused()
        for dispatcher in ("dispatcher-0", "dispatcher-1"):
            world.supervisor.differs(dispatcher, "decode-0", 1, "weight_format is int4")
        assert refused() == ["weight_format is int4"]
        assert world.said.count("decode-0 is refused: weight_format is int4") == 1
        world.supervisor.unfollow("dispatcher-0")
        assert refused()
        world.supervisor.unfollow("dispatcher-1")
        assert not refused()
        world.supervisor.differs("dispatcher-0", "decode-0", 1, "weight_format is int4")
        await world.end("decode-0")
        assert not refused()


async def test_weights_of_each_instance_are_shown() -> None:
    async with running() as world:

        def versions() -> dict[str, str]:
            return {one.name: one.weight_version for one in world.supervisor.status().processes}

        world.supervisor.serves("decode-0", 2, "of another run")
        assert set(versions().values()) == {""}
        world.supervisor.serves("decode-0", 1, "step-7")
        assert versions() == dict.fromkeys(versions(), "") | {"decode-0": "step-7"}
        await world.end("decode-0")
        assert set(versions().values()) == {""}


async def test_a_process_that_waits_to_be_started_again_is_stopped_at_once() -> None:
    async with running() as world:
        await world.end("decode-0")
        await asyncio.wait_for(world.supervisor.stop(), 30)
        assert {one.state for one in world.supervisor.status().processes} == {"gone"}
        with pytest.raises(DeploymentError, match="is stopping"):
            await world.supervisor.scale("decode", 3)


async def test_status_has_all_processes() -> None:
    async with running() as world:
        await world.sleeps.advance(5)
        found = world.supervisor.status()
        assert (found.deployment, found.url, found.uptime_s) == ("inlay", "http://here", 5)
        assert [one.name for one in found.processes] == [one.name for one in Specs().all()]
        assert found.processes[3].log == "/logs/decode-0.log"
        assert found.processes[3].since_s == 5
