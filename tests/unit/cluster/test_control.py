"""The supervisor's socket: dispatchers follow the roster, commands are answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from inlay.cluster.control import (
    ChangeRole,
    Differs,
    Done,
    Drain,
    Drained,
    Follow,
    FromSupervisor,
    Roster,
    Status,
    StatusRequest,
    Stop,
    ToSupervisor,
    control_address,
)
from inlay.cluster.control_client import ask
from inlay.cluster.control_server import ControlServer
from inlay.core.errors import ArgumentError, DeploymentError, WaitTimeoutError
from tests.unit.cluster.test_supervisor import World, running, settle


class Dispatcher:
    """A dispatcher's end of the socket."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(control_address(directory))

    def send(self, message: ToSupervisor) -> None:
        self._socket.send(msgspec.msgpack.encode(message))

    async def roster(self) -> Roster:
        assert await asyncio.to_thread(self._socket.poll, 5000)
        found: FromSupervisor = msgspec.msgpack.decode(self._socket.recv(), type=FromSupervisor)
        assert isinstance(found, Roster)
        return found

    def close(self) -> None:
        self._socket.close()
        self._context.term()


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[World]:
    async with running() as world:
        world.supervisor.unfollow("dispatcher-0")

        async def stop(at_once: bool) -> None:
            await world.supervisor.stop(at_once=at_once)

        server = ControlServer(world.supervisor, directory, stop)
        try:
            yield world
        finally:
            await server.aclose()


async def command(directory: Path, message: ToSupervisor) -> Done | Status:
    return await asyncio.to_thread(ask, control_address(directory), message, timeout_s=5)


async def test_a_dispatcher_follows_the_roster(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        dispatcher = Dispatcher(tmp_path, "dispatcher-0")
        dispatcher.send(Follow(dispatcher.name))
        first = await dispatcher.roster()
        assert first == world.supervisor.roster
        await world.end("decode-0")
        second = await dispatcher.roster()
        assert second.members[1].state == "starting"
        draining = asyncio.ensure_future(command(tmp_path, Drain("decode-1")))
        third = await dispatcher.roster()
        assert (third.members[2].state, third.number) == ("draining", first.number + 2)
        dispatcher.send(Differs(dispatcher.name, "prefill-0", 1, "another model"))
        dispatcher.send(Drained(dispatcher.name, "decode-1", 1))
        assert await draining == Done("decode-1 is gone")
        found = await command(tmp_path, StatusRequest())
        assert isinstance(found, Status)
        assert [one.refused for one in found.processes if one.name == "prefill-0"] == [
            "another model"
        ]
        dispatcher.close()


async def test_who_does_not_listen_any_more_holds_nothing_up(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        dispatcher = Dispatcher(tmp_path, "dispatcher-0")
        dispatcher.send(Follow(dispatcher.name))
        await dispatcher.roster()
        dispatcher.close()
        while True:  # until the system has told the socket
            await command(tmp_path, StatusRequest())
            world.supervisor.change_role("decode-0", "both")
            world.supervisor.change_role("decode-0", "decode")
            await settle()
            if not world.supervisor._followers:
                break
        await command(tmp_path, Drain("decode-1"))


async def test_commands_are_answered(tmp_path: Path) -> None:
    async with served(tmp_path):
        found = await command(tmp_path, StatusRequest())
        assert isinstance(found, Status) and len(found.processes) == 6
        done = await command(tmp_path, ChangeRole("decode-0", "both"))
        assert done == Done("decode-0: decode -> both")
        with pytest.raises(DeploymentError, match="there is no instance 'x'"):
            await command(tmp_path, Drain("x"))
        assert await command(tmp_path, Stop()) == Done("stopped")


async def test_what_is_no_message_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path):
        with pytest.raises(ArgumentError, match="it cannot be read"):
            await command(tmp_path, "nonsense")  # type: ignore[arg-type]


async def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(WaitTimeoutError, match="did not answer in 0.05 s"):
        ask(control_address(tmp_path), StatusRequest(), timeout_s=0.05)
