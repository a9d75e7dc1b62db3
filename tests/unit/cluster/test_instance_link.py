"""The link to an instance: gaps, ends and what cannot be read."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import zmq

from inlay.cluster.instance_link import InstanceLink
from inlay.core.instance_messages import (
    FromInstance,
    InstanceInfo,
    KvEvents,
    KvSnapshot,
    Subscribe,
)
from inlay.core.messages import EngineFailure
from tests.unit.cluster.instance_stand_in import InstanceStandIn


class Owner:
    def __init__(self) -> None:
        self.messages: list[FromInstance] = []
        self.reasons: list[str] = []
        self.news = asyncio.Event()

    def received(self, message: FromInstance) -> None:
        self.messages.append(message)
        self.news.set()

    def lost(self, reason: str) -> None:
        self.reasons.append(reason)
        self.news.set()

    def count(self, kind: type[FromInstance]) -> int:
        return sum(isinstance(message, kind) for message in self.messages)

    async def until(self, happened: Callable[[], object]) -> None:
        while not happened():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 10)


Pair = tuple[InstanceStandIn, Owner, InstanceLink]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    instance, owner = InstanceStandIn(context, "i0"), Owner()

    def connect() -> "zmq.Socket[bytes]":
        socket = context.socket(zmq.DEALER)
        socket.connect(instance.address)
        return socket

    link = InstanceLink(connect, "d0", owner)
    await owner.until(lambda: owner.count(KvSnapshot))
    yield instance, owner, link
    link.close()
    instance.close()
    context.term()


async def test_it_hears_who_it_is(pair: Pair) -> None:
    instance, owner, link = pair
    assert instance.heard == [Subscribe("d0")]
    assert isinstance(owner.messages[0], InstanceInfo)
    assert link.state == "connected"


async def test_a_gap_asks_again_and_hides_what_does_not_fit(pair: Pair) -> None:
    instance, owner, _ = pair
    instance.events()
    await owner.until(lambda: owner.count(KvEvents) == 1)
    instance.events(skip=1)
    instance.events()
    await owner.until(lambda: owner.count(KvSnapshot) == 2)
    assert owner.count(KvEvents) == 1
    assert instance.heard.count(Subscribe("d0")) == 2  # once for the gap, not for each event
    instance.events()
    await owner.until(lambda: owner.count(KvEvents) == 2)


async def test_a_lost_connection_is_told_and_made_anew(pair: Pair) -> None:
    instance, owner, link = pair
    port = int(instance.address.rpartition(":")[2])
    instance.close()
    await owner.until(lambda: owner.reasons)
    assert owner.reasons == ["its connection was lost"]
    again = InstanceStandIn(zmq.Context.instance(), "i0", port=port, run_id="i0-2")
    await owner.until(lambda: owner.count(InstanceInfo) == 2)
    assert link.state == "connected"
    again.close()
    await owner.until(lambda: len(owner.reasons) == 2)


async def test_an_instance_that_refuses_is_left(pair: Pair) -> None:
    instance, owner, link = pair
    instance.tell(EngineFailure("instance_version", "it speaks protocol 9"))
    await owner.until(lambda: owner.reasons)
    assert owner.reasons == ["it speaks protocol 9"] == [link.state]
    assert not link.send(Subscribe("d0"))


async def test_what_cannot_be_read_ends_it(pair: Pair) -> None:
    instance, owner, link = pair
    instance.tell(42)  # type: ignore[arg-type]
    await owner.until(lambda: owner.reasons)
    assert "cannot be read" in link.state
