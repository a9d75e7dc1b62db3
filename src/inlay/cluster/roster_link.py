"""The connection to the supervisor, which says who is there."""

import logging
from collections.abc import Callable

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from inlay.cluster.control import (
    ChangeRole,
    Differs,
    Drained,
    Follow,
    FromSupervisor,
    Refused,
    Roster,
    Serves,
    Stalled,
    ToSupervisor,
)
from inlay.core.instance_messages import Role
from inlay.core.message_socket import MessageSocket

log = logging.getLogger(__name__)

_RECONNECT_MAX_MS = 1000


class RosterLink:
    """Follows the roster, on the running event loop. Without a supervisor the last one holds.

    Args:
        address: of the supervisor's ROUTER.
        dispatcher: our name.
        changed: called with each roster.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        dispatcher: str,
        changed: Callable[[Roster], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._changed = changed
        self._decode = msgspec.msgpack.Decoder(FromSupervisor).decode
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._unwatch = socket.disable_monitor
        self._socket = MessageSocket(socket, self._received)
        self._monitor = MessageSocket(monitor, self._connected)
        socket.connect(address)

    def drained(self, instance: str, run: int) -> None:
        """Nothing of ours is at an instance that is draining."""
        self._send(Drained(self._dispatcher, instance, run))

    def stalled(self, instance: str, run: int, silent_s: float) -> None:
        """An instance stands still: it is to be started again."""
        self._send(Stalled(instance, run, silent_s))

    def differs(self, instance: str, run: int, difference: str) -> None:
        """We send an instance nothing, since it is not like the others."""
        self._send(Differs(self._dispatcher, instance, run, difference))

    def serves(self, instance: str, run: int, version: str) -> None:
        """Which weights compute an instance's new requests."""
        self._send(Serves(instance, run, version))

    def change_role(self, instance: str, role: Role) -> None:
        """Ask that an instance has another role; the roster says when it has."""
        self._send(ChangeRole(instance, role))

    def close(self) -> None:
        """Leave."""
        self._unwatch()
        self._monitor.close()
        self._socket.close()

    def _send(self, message: ToSupervisor) -> None:
        self._socket.send(msgspec.msgpack.encode(message))

    def _connected(self, frames: list[bytes]) -> None:
        if parse_monitor_message(frames)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._send(Follow(self._dispatcher))

    def _received(self, frames: list[bytes]) -> None:
        try:
            message = self._decode(frames[0])
        except msgspec.MsgspecError as error:
            log.error("a message of the supervisor cannot be read: %s", error)
            return
        if isinstance(message, Roster):
            self._changed(message)
        elif isinstance(message, Refused):
            log.warning("the supervisor: %s", message.message)
