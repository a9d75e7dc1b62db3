"""The link to the supervisor."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from inlay.cluster.control import (
    Differs,
    Drained,
    Follow,
    Roster,
    Serves,
    ToSupervisor,
    control_address,
)
from inlay.cluster.roster_link import RosterLink
from inlay.core.message_socket import MessageSocket


class SupervisorStandIn:
    """A ROUTER that says what a test wants."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.heard: list[ToSupervisor] = []
        self.news = asyncio.Event()
        self._peers: set[bytes] = set()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.bind(address)
        self._reader = MessageSocket(self._socket, self._received)

    def tell(self, data: bytes) -> None:
        for peer in self._peers:
            self._socket.send_multipart([peer, data])

    async def until(self, count: int) -> None:
        while len(self.heard) < count:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 10)

    def close(self) -> None:
        self._reader.close()

    def _received(self, frames: list[bytes]) -> None:
        self._peers.add(frames[0])
        self.heard.append(msgspec.msgpack.decode(frames[1], type=ToSupervisor))
        self.news.set()


@pytest.fixture
def context() -> "Iterator[zmq.Context[zmq.Socket[bytes]]]":
    with zmq.Context() as context:
        yield context


async def test_it_follows_and_outlives_the_supervisor(
    context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    address = control_address(tmp_path)
    rosters: asyncio.Queue[Roster] = asyncio.Queue()
    supervisor = SupervisorStandIn(context, address)
    link = RosterLink(context, address, "d0", rosters.put_nowait)
    await supervisor.until(1)
    assert supervisor.heard == [Follow("d0")]
    supervisor.tell(b"\xc1")  # what cannot be read is logged, and passed over
    for number in (1, 2):
        supervisor.tell(msgspec.msgpack.encode(Roster(number=number, members=())))
        assert (await asyncio.wait_for(rosters.get(), 10)).number == number
    link.drained("p0", 3)
    await supervisor.until(2)
    assert supervisor.heard[1] == Drained("d0", "p0", 3)
    link.differs("p0", 3, "another model")
    await supervisor.until(3)
    assert supervisor.heard[2] == Differs("d0", "p0", 3, "another model")
    link.serves("p0", 3, "step-7")
    await supervisor.until(4)
    assert supervisor.heard[3] == Serves("p0", 3, "step-7")
    supervisor.close()
    again = SupervisorStandIn(context, address)
    await again.until(1)
    assert again.heard == [Follow("d0")]
    link.close()
    again.close()
