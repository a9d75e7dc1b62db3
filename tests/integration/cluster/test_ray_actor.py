"""What an actor of Ray does with a process; Ray itself is not needed."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from inlay.cluster.launch.launcher import ProcessSpec, Said
from inlay.cluster.launch.ray_actor import Began, Ended, Event, ProcessActor
from tests.support.deployments import alive


def played(**setup: Any) -> ProcessSpec:
    return ProcessSpec(
        name="p",
        kind="instance",
        module="tests.integration.cluster.played_process",
        setup={"name": "p", **setup},
    )


async def until_said(events: AsyncIterator[Event]) -> tuple[int, dict[str, Any], bytes]:
    """Process id, what it says of itself, and its log until then."""
    pid, log = 0, b""
    async for event in events:
        match event:
            case Began(pid):
                pass
            case bytes():
                log += event
            case Said():
                return pid, json.loads(event.address), log
    raise AssertionError("it said nothing")


async def test_an_actor_tells_all_of_a_process() -> None:
    actor = ProcessActor()
    events = actor.run(played(exit=7))
    pid, said, log = await asyncio.wait_for(until_said(events), 30)
    assert pid and said["parent"]
    rest = [event async for event in events]
    assert rest[-1] == Ended("ended with exit status 7")
    assert b"log of p" in log + b"".join(one for one in rest if isinstance(one, bytes))
    await actor.stop(1)  # nothing is left to be stopped


@pytest.mark.parametrize(("setup", "how"), [({}, "exit status 0"), ({"deaf": True}, "SIGKILL")])
async def test_an_actor_stops_a_process(setup: dict[str, Any], how: str) -> None:
    actor = ProcessActor()
    await actor.stop(1)  # there is none yet
    events = actor.run(played(**setup))
    pid, _, _ = await asyncio.wait_for(until_said(events), 30)
    await actor.stop(30 if not setup else 0.2)
    assert not alive(pid)
    last = [event async for event in events][-1]
    assert isinstance(last, Ended) and last.how.endswith(how)
