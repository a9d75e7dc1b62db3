"""Instances that stand still, as a dispatcher finds them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from inlay.cluster.instance import Instance
from inlay.cluster.stalls import StallWatch
from inlay.core.instance_messages import Subscribe
from inlay.core.messages import GenerateRequest
from tests.unit.cluster.dispatching import Cluster, Reading, expected, request


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def cluster(**config: Any) -> Cluster:
        made.append(Cluster(**config))
        return made[-1]

    yield cluster
    for one in made:
        one.close()


class Watched:
    """A watch, and whom it told of."""

    def __init__(self, cluster: Cluster, stall_s: float = 10.0) -> None:
        self.stalled: list[tuple[str, float]] = []
        self.watch = StallWatch(
            cluster.instances, cluster.chooser, stall_s=stall_s, tell=self._tell
        )

    def _tell(self, instance: Instance, silent_s: float) -> None:
        self.stalled.append((instance.name, silent_s))


async def test_requests_of_one_that_stands_still_go_on_elsewhere(
    make: Callable[..., Cluster],
) -> None:
    cluster = make()
    still = await cluster.add("a", eager=False)
    reading = Reading(cluster, request())
    rest = await still.until(GenerateRequest)
    still.answer(rest.request_id, 1)
    await reading.until(1)
    other = await cluster.add("b", eager=False)
    watched = Watched(cluster)
    lively = cluster.instances.find("b")
    assert lively is not None
    for _ in range(9):
        watched.watch.check(1.0)
        other.tell(other.report())
        while lively.silent_s:
            await asyncio.sleep(0.001)
    assert not watched.stalled
    watched.watch.check(1.0)
    assert watched.stalled == [("a", 10.0)]
    rest = await other.until(GenerateRequest)
    other.answer(rest.request_id)
    await reading.end()
    assert reading.text() == expected()
    # On its new connection it is asked again; it is back when it answers, as this one does.
    await still.until(Subscribe, count=2)


async def test_one_that_cannot_be_reached_is_not_told_of(make: Callable[..., Cluster]) -> None:
    cluster = make()
    gone = await cluster.add("a")
    instance = cluster.instances.find("a")
    assert instance is not None and instance.reached
    gone.close()
    while instance.reached:
        await asyncio.sleep(0.001)
    watched = Watched(cluster)
    for _ in range(40):
        watched.watch.check(1.0)
    assert not watched.stalled


async def test_long_steps_are_waited_for(make: Callable[..., Cluster]) -> None:
    cluster = make()
    await cluster.add("a")
    instance = cluster.instances.find("a")
    assert instance is not None and instance.slot is not None
    cluster.chooser.state.chunk_s[instance.slot] = 2.0
    watched = Watched(cluster)
    for _ in range(40):
        watched.watch.check(1.0)
    assert not watched.stalled
    watched.watch.check(1.0)
    assert [name for name, _ in watched.stalled] == ["a"]
