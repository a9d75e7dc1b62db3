"""The connection to one instance: what it says in, requests out, and the news that it is gone.

The sequence numbers of block events are checked here: where one is missing, the link subscribes
again, and nobody sees events that do not fit the snapshot before them. A connection that closes,
or whose heartbeats stop, is reported within milliseconds or two seconds; the link then connects
anew by itself until it is closed.
"""

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from inlay.core.instance_messages import (
    FromInstance,
    KvEvents,
    KvSnapshot,
    Subscribe,
    ToInstance,
)
from inlay.core.message_socket import MessageSocket
from inlay.core.messages import EngineFailure

log = logging.getLogger(__name__)

_REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_CONNECTING = zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED
_WATCHED = _CONNECTING | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | _REFUSED
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FromInstance).decode


class LinkOwner(Protocol):
    """Who is told of what a link hears. Called on the event loop."""

    def received(self, message: FromInstance) -> None:
        """A message came; block events are without gaps since the last snapshot."""
        ...

    def lost(self, reason: str) -> None:
        """The connection is gone, and with it all requests on it. A new one may come."""
        ...


class InstanceLink:
    """A DEALER to one instance, on the running event loop.

    Args:
        connect: makes a connected DEALER to the instance.
        dispatcher: our name, for its logs.

    Attributes:
        state: in words: `connecting`, `connected`, or why it is neither.
        closed: it connects no more.
        reached: not known to be out of reach: its machine takes our connection, whether or not the
            instance answers.
    """

    def __init__(
        self, connect: "Callable[[], zmq.Socket[bytes]]", dispatcher: str, owner: LinkOwner
    ) -> None:
        self._connect = connect
        self._hello = _encode(Subscribe(dispatcher))
        self._owner = owner
        self.closed = False
        self.state = "connecting"
        self.reached = True
        self._open()

    def send(self, message: ToInstance) -> bool:
        """Send without waiting. What is on its way to an instance that is lost is lost, too."""
        return self._socket.send(_encode(message))

    def renew(self, reason: str) -> None:
        """Leave this connection for a new one; the owner hears that it is lost."""
        self.state = "connecting"
        self._shut()
        self._open()
        self._owner.lost(reason)

    def close(self) -> None:
        """Leave; the instance cancels what it does for us. The owner hears nothing more."""
        if not self.closed:
            self.closed = True
            self._shut()

    def _open(self) -> None:
        """Connect. Nothing is heard on a new socket before it has said who it is."""
        socket = self._connect()
        monitor = socket.get_monitor_socket(_WATCHED)
        self._unwatch = socket.disable_monitor
        self._sequence: int | None = None
        self._socket = MessageSocket(socket, self._received)
        self._monitor = MessageSocket(monitor, self._happened)
        self._socket.send(self._hello)

    def _shut(self) -> None:
        self._unwatch()  # first: an event that nobody reads would hold ZeroMQ's thread up
        self._monitor.close()
        self._socket.close()

    def _received(self, frames: list[bytes]) -> None:
        try:
            message = _decode(frames[0])
        except msgspec.MsgspecError as error:
            log.error("a message of an instance cannot be read: %s", error)
            self._give_up(f"sends what cannot be read ({error}): it may be of another version")
            return
        self.state = "connected"
        if isinstance(message, KvSnapshot):
            self._sequence = message.sequence
        elif isinstance(message, KvEvents):
            if self._sequence is None:
                return  # of before the snapshot that was asked for
            if message.sequence != self._sequence + 1:
                log.warning("block events are missing, asking for all blocks again")
                self._sequence = None
                self._socket.send(self._hello)
                return
            self._sequence = message.sequence
        elif isinstance(message, EngineFailure):
            self._give_up(message.message)
            return
        self._owner.received(message)

    def _happened(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if event & _CONNECTING:
            self.reached = event == zmq.EVENT_CONNECTED
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.state = "connected"
        elif event & _REFUSED:
            self.state = "refuses the connection: is the secret the same?"
        elif event == zmq.EVENT_DISCONNECTED:
            self._socket.receive()  # what came before the end counts
            if not self.closed:
                self.renew("its connection was lost")

    def _give_up(self, reason: str) -> None:
        """It is of no use, and would not be after another try."""
        self.close()
        self.state = reason
        self._owner.lost(reason)
