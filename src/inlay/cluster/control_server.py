"""The supervisor's socket."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import zmq

from inlay.cluster.control import (
    ChangeRole,
    Differs,
    Done,
    Drain,
    Drained,
    Follow,
    FromSupervisor,
    Refused,
    Roster,
    Scale,
    Serves,
    Stalled,
    StatusRequest,
    Stop,
    ToSupervisor,
    control_address,
)
from inlay.cluster.supervisor import Supervisor
from inlay.core.errors import InlayError

log = logging.getLogger(__name__)
_LINGER_MS = 1000
_END_S = 1.0


class ControlServer:
    """Answers dispatchers and commands, on the event loop that made it.

    Args:
        directory: private; the socket is in it.
        stop: ends the deployment; the argument says whether at once.
    """

    def __init__(
        self, supervisor: Supervisor, directory: Path, stop: Callable[[bool], Awaitable[None]]
    ) -> None:
        self._supervisor = supervisor
        self._stop = stop
        self._followers: dict[bytes, str] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToSupervisor).decode
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        self._socket.bind(control_address(directory))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._receive)
        self._loop.call_soon(self._receive)
        supervisor.on_roster = self._push

    async def aclose(self) -> None:
        """Close the socket when commands have their answers. The supervisor has stopped."""
        await asyncio.wait([*self._tasks, asyncio.ensure_future(asyncio.sleep(0))], timeout=_END_S)
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._context.term()

    def _receive(self) -> None:
        while not self._socket.closed:
            try:
                peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._decode(b"".join(frames))
            except msgspec.MsgspecError as error:
                log.warning("a message to the supervisor cannot be read: %s", error)
                self._send(peer, Refused("invalid_argument", f"it cannot be read: {error}"))
            else:
                self._handle(peer, message)

    def _handle(self, peer: bytes, message: ToSupervisor) -> None:
        supervisor = self._supervisor
        match message:
            case Follow():
                self._followers[peer] = message.dispatcher
                supervisor.follow(message.dispatcher)
                self._send(peer, supervisor.roster)
            case Drained():
                supervisor.drained(message.dispatcher, message.instance, message.run)
            case Stalled():
                supervisor.stalled(message.instance, message.run, message.silent_s)
            case Differs():
                supervisor.differs(
                    message.dispatcher, message.instance, message.run, message.difference
                )
            case Serves():
                supervisor.serves(message.instance, message.run, message.version)
            case StatusRequest():
                self._send(peer, supervisor.status())
            case Scale():
                self._answer(peer, supervisor.scale(message.group, message.count))
            case Drain():
                self._answer(peer, supervisor.drain(message.instance))
            case ChangeRole():
                self._answer(peer, self._change_role(message))
            case Stop():
                self._answer(peer, self._stop_all(message))

    async def _change_role(self, message: ChangeRole) -> str:
        return self._supervisor.change_role(message.instance, message.role)

    async def _stop_all(self, message: Stop) -> str:
        await self._stop(message.at_once)
        return "stopped"

    def _answer(self, peer: bytes, work: Coroutine[Any, Any, str]) -> None:
        """Do what a command asks for, and answer then."""
        task = asyncio.ensure_future(self._do(peer, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, peer: bytes, work: Coroutine[Any, Any, str]) -> None:
        try:
            answer: FromSupervisor = Done(await work)
        except InlayError as error:
            answer = Refused(error.code, str(error))
        except Exception as error:
            log.exception("a command failed")
            answer = Refused("internal_error", f"{error!r}; the supervisor's log has more")
        self._send(peer, answer)

    def _push(self, roster: Roster) -> None:
        for peer in list(self._followers):
            self._send(peer, roster)

    def _send(self, peer: bytes, message: FromSupervisor) -> None:
        if self._socket.closed:
            return
        try:
            self._socket.send_multipart([peer, self._encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:  # it is gone, or takes nothing
            with contextlib.suppress(KeyError):
                name = self._followers.pop(peer)
                if name not in self._followers.values():
                    self._supervisor.unfollow(name)
        # Sending may consume the edge that announces a message (ZMQ_FD is edge-triggered).
        self._loop.call_soon(self._receive)
