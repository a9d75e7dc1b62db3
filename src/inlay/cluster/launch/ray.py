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
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.cluster.launch.launcher import ProcessSpec, Running
from inlay.cluster.launch.local import LocalLauncher
from inlay.cluster.launch.log_file import LogFile
from inlay.cluster.launch.ray_actor import ProcessActor
from inlay.cluster.launch.ray_bundles import machine_of, make_bundles
from inlay.cluster.launch.ray_process import SETTLE_S, RayProcess
from inlay.core.errors import DeploymentError

_CHILDREN = ("dispatcher", "master")
_ANSWER_S = 5.0
_RESERVE_S = 30.0


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
        self._calls: set[asyncio.Future[None]] = set()
        self._closed = False
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
        machine = machine_of(spec, self._here)
        return RayProcess(
            spec,
            place.actor,
            LogFile(Path(self.log_file(spec.name))),
            self._drop,
            where="" if machine == self._here else machine,
        )

    def log_file(self, name: str) -> str:
        """The file of a process's log."""
        return self._local.log_file(name)

    async def close(self) -> None:
        """End what is left of actors, give back what was set aside, and leave Ray."""
        if self._closed:
            return
        self._closed = True
        places = self._places.values()
        actors = [place.actor for place in places if place.actor is not None]
        groups = {place.group.id: place.group for place in places}
        if self._calls:
            await asyncio.wait(self._calls, timeout=SETTLE_S)

        def leave() -> None:
            self._give_back(actors, list(groups.values()))
            self._ray.shutdown()

        await asyncio.wait((_apart(leave),), timeout=SETTLE_S)

    def _drop(self, actor: Any, leave: bool) -> None:
        """End an actor for good; where its process will `leave`, so does what was set aside."""
        groups = []
        for name, place in list(self._places.items()):
            if place.actor is actor:
                place.actor = None
                if leave and not place.shared:
                    groups.append(self._places.pop(name).group)
        call = _apart(lambda: self._give_back([actor], groups))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    def _give_back(self, actors: Sequence[Any], groups: Sequence[Any]) -> None:
        for actor in actors:
            self._ray.kill(actor, no_restart=True)
        for group in groups:
            self._ray.util.remove_placement_group(group)

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


def _apart(call: Callable[[], None]) -> asyncio.Future[None]:
    """Call Ray in a thread that nobody has to wait for: Ray waits a minute for a head that is gone.

    Errors are no news: what was to be given back is gone with Ray.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        with contextlib.suppress(Exception):
            call()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(done.set_result, None)

    threading.Thread(target=run, name="inlay-ray", daemon=True).start()
    return done


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
