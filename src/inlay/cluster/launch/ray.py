"""Processes of a deployment on the machines of a Ray cluster.

Instances and nodes of the store run in Ray actors, one in each. All that a deployment begins with
is set aside together, as one placement group. When an actor or its machine is lost, Ray restarts
the actor; the supervisor then starts the process in it, as it does when the process alone ended.
Dispatchers and masters use sockets and files of the supervisor's machine and are its children.

Actors belong to the supervisor's connection: Ray ends them when that is gone, however it ended.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.cluster.launch.launcher import ProcessSpec, Running, Said
from inlay.cluster.launch.local import LocalLauncher
from inlay.cluster.launch.log_file import LogFile
from inlay.cluster.launch.ray_actor import Began, Ended, Event, ProcessActor
from inlay.cluster.launch.ray_bundles import machine_of, make_bundles
from inlay.core.errors import DeploymentError

_CHILDREN = ("dispatcher", "master")
_ANSWER_S = 5.0
_RESERVE_S = 30.0
_SETTLE_S = 5.0  # for Ray to say what became of an actor that we ended


@dataclass(kw_only=True)
class _Place:
    """Where a process runs, over all its runs: a bundle of a placement group.

    Attributes:
        group: Ray's.
        shared: with other processes, so that it is kept until the end.
        actor: Ray's handle, or None before the first run and after one that was killed.
    """

    group: Any
    bundle: int
    shared: bool
    actor: Any = None


class RayLauncher:
    """Starts actors of a Ray cluster that is there.

    Args:
        logs: directory of the logs on this machine; actors send theirs here.
        planned: for which Ray sets resources aside now. Those that come later have what is left.

    Raises:
        DeploymentError: Ray is not installed, does not run, or has no room.
    """

    def __init__(self, logs: Path, planned: Sequence[ProcessSpec]) -> None:
        self._ray = _connect()
        self._local = LocalLauncher(logs)
        self._places: dict[str, _Place] = {}
        try:
            self._here: str = self._ray.util.get_node_ip_address()
            self._reserve([spec for spec in planned if spec.kind not in _CHILDREN], _RESERVE_S)
        except BaseException:
            self._ray.shutdown()
            raise

    async def start(self, spec: ProcessSpec) -> Running:
        """Start one; an actor that Ray restarts just now is waited for by the process itself.

        Raises:
            DeploymentError: it is a new one, and Ray has no room.
            OSError: a child process cannot be started.
        """
        if spec.kind in _CHILDREN:
            return await self._local.start(spec)
        if spec.name not in self._places:
            await asyncio.to_thread(self._reserve, [spec], _RESERVE_S)
        place = self._places[spec.name]
        if place.actor is None:
            place.actor = self._make_actor(spec, place)
        return RayProcess(spec, place.actor, self)

    def log_file(self, name: str) -> str:
        """The file of a process's log."""
        return self._local.log_file(name)

    def where(self, spec: ProcessSpec) -> str:
        """The machine of a process; empty for this one."""
        machine = machine_of(spec, self._here)
        return "" if machine == self._here else machine

    def drop(self, actor: Any, *, leave: bool = False) -> None:
        """End an actor for good; where its process will `leave`, so does what was set aside."""
        self._ray.kill(actor, no_restart=True)
        for name, place in list(self._places.items()):
            if place.actor is actor:
                place.actor = None
                if leave and not place.shared:
                    del self._places[name]
                    self._ray.util.remove_placement_group(place.group)

    async def close(self) -> None:
        """End what is left of actors, give back what was set aside, and leave Ray."""
        places, self._places = self._places, {}
        await asyncio.to_thread(self._close, list(places.values()))

    def _close(self, places: Sequence[_Place]) -> None:
        if not self._ray.is_initialized():
            return
        for place in places:
            if place.actor is not None:
                self._ray.kill(place.actor, no_restart=True)
        for group in {place.group.id: place.group for place in places}.values():
            self._ray.util.remove_placement_group(group)
        self._ray.shutdown()

    def _reserve(self, specs: Sequence[ProcessSpec], timeout_s: float) -> None:
        """Set aside what processes need, for all of them or none."""
        if not specs:
            return
        machines = {
            node["NodeManagerAddress"]: node["Resources"]
            for node in self._ray.nodes()
            if node["Alive"]
        }
        bundles = make_bundles(specs, machines, self._here)
        group = self._ray.util.placement_group(bundles)
        if not group.wait(timeout_s):
            self._ray.util.remove_placement_group(group)
            names = ", ".join(spec.name for spec in specs)
            raise DeploymentError(
                f"Ray did not set aside what {names} need in {timeout_s:g} s, since others use it: "
                "ray status shows what is free"
            )
        for index, spec in enumerate(specs):
            self._places[spec.name] = _Place(group=group, bundle=index, shared=len(specs) > 1)

    def _make_actor(self, spec: ProcessSpec, place: _Place) -> Any:
        strategies = self._ray.util.scheduling_strategies
        return (
            self._ray.remote(ProcessActor)
            .options(
                max_restarts=-1,
                max_concurrency=8,
                num_cpus=0,  # the bundle has them; to an actor that asks, Ray sets OMP_NUM_THREADS
                num_gpus=spec.num_gpus,
                scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                    place.group, placement_group_bundle_index=place.bundle
                ),
            )
            .remote()
        )


class RayProcess:
    """A process in an actor. All methods are called on the event loop that made it.

    Attributes:
        pid: on its machine; 0 until it is known.
        where: its machine; empty for this one.
    """

    def __init__(self, spec: ProcessSpec, actor: Any, launcher: RayLauncher) -> None:
        self.pid = 0
        self.where = launcher.where(spec)
        self._actor = actor
        self._launcher = launcher
        self._log = LogFile(Path(launcher.log_file(spec.name)))
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
            await asyncio.wait((self._task,), timeout=grace_s + _SETTLE_S)
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
        self._launcher.drop(self._actor, leave=leave)
        asyncio.get_running_loop().call_later(_SETTLE_S, self._task.cancel)

    async def _follow(self, spec: ProcessSpec) -> None:
        """Run it, and take what becomes of it, until its end."""
        from ray.exceptions import RayError

        try:
            # Tried again by Ray for as long as it restarts the actor.
            await self._actor.present.options(max_task_retries=-1).remote()
            events = self._actor.run.options(num_returns="streaming").remote(spec)
            async for event in events:
                self._take(await event)
        except RayError as error:
            self._how = self._how or self._lost(error)
        finally:
            self._log.close()
            self._said.put_nowait(None)

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
        with contextlib.suppress(Exception):  # it is gone for good: the next run has another one
            self._launcher.drop(self._actor)
        return f"was lost with its Ray actor, for good: {' '.join(str(error).split())}"


def _check_address(address: str) -> None:
    """That a Ray cluster may be at a given address: Ray itself takes a minute to give up.

    Raises:
        DeploymentError: it is one for clients of Ray, whose actors would outlive a supervisor.
        OSError: nobody listens there.
    """
    if address.startswith("ray://"):
        raise DeploymentError(
            f"RAY_ADDRESS is {address}: run inlay up on a machine of the cluster, and leave it out"
        )
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()


def _connect() -> Any:
    """The module `ray`, connected to the cluster of RAY_ADDRESS, or of this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when Ray is imported
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise DeploymentError(
            'launcher = "ray" needs Ray, which is not installed: pip install "inlay[cluster]"'
        ) from None
    try:
        _check_address(os.environ.get("RAY_ADDRESS", ""))
        ray.init(address="auto", configure_logging=False, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise DeploymentError(
            f"Ray cannot be reached ({' '.join(str(error).split())}): start it with ray start "
            "--head, or set RAY_ADDRESS"
        ) from None
    return ray
