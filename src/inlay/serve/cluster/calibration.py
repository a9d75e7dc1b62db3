"""Finds the instances of a running deployment, and has one of each kind measured."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import zmq

from inlay.cluster.calibrate import Calibration, calibrate
from inlay.cluster.chooser import timing_kind
from inlay.cluster.control import Roster
from inlay.cluster.deployment_directory import DeploymentDirectory, Supervised, deployments_root
from inlay.cluster.deployment_file import read_deployment
from inlay.cluster.roster_link import RosterLink
from inlay.core.errors import DeploymentError, WaitTimeoutError
from inlay.core.instance_socket import connect_instance
from inlay.core.settings import read_settings

_ROSTER_S = 5.0


def timing_directory() -> Path:
    """Where dispatchers of this user look for timing models, unless told otherwise."""
    return read_settings().cache_dir / "timing"


def calibrate_deployment(
    running: Supervised, seconds: float, *, say: Callable[[str], None]
) -> list[Calibration]:
    """Measure one instance of each kind, one after the other.

    Args:
        seconds: for each kind.
        say: is told whom it measures.

    Raises:
        DeploymentError: no instance is ready.
        WaitTimeoutError: the supervisor or an instance does not answer.
        EngineError: an instance failed.
    """
    return asyncio.run(_calibrate(running, seconds, say))


async def _calibrate(
    running: Supervised, seconds: float, say: Callable[[str], None]
) -> list[Calibration]:
    deployment = read_deployment(Path(running.file))
    secret = deployment.secret or DeploymentDirectory(deployments_root(), deployment.name).secret()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        roster = await _roster(context, running.control)
        ready = [member for member in roster.members if member.state == "ready"]
        if not ready:
            raise DeploymentError(
                f"no instance of {deployment.name} is ready: inlay status {deployment.name} shows "
                "what they do"
            )
        kinds: dict[str, Calibration] = {}
        groups: set[str] = set()
        for member in ready:
            group = member.name.rpartition("-")[0]
            if group in groups:  # instances of a group have the same settings
                continue
            groups.add(group)
            say(f"measuring {member.name}, up to {seconds:g} s")
            found = await calibrate(
                member,
                lambda address: connect_instance(context, address, secret),
                budget_s=seconds,
            )
            kinds.setdefault(timing_kind(found.info), found)
        return list(kinds.values())
    finally:
        context.destroy(linger=0)


async def _roster(context: "zmq.Context[zmq.Socket[bytes]]", control: str) -> Roster:
    came: asyncio.Future[Roster] = asyncio.get_running_loop().create_future()

    def changed(roster: Roster) -> None:
        if not came.done():
            came.set_result(roster)

    link = RosterLink(context, control, "calibrate", changed)
    try:
        return await asyncio.wait_for(came, _ROSTER_S)
    except TimeoutError:
        raise WaitTimeoutError(
            f"the supervisor at {control} did not say in {_ROSTER_S:g} s who is there"
        ) from None
    finally:
        link.close()
