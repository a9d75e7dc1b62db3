"""Who is at the other end of an instance's socket, and whose request is whose.

Each connection is a peer: the private front, or a dispatcher. Peers choose their request ids
without knowing of each other, so the engine sees them behind the peer's number: `3:abc`.
"""

import contextlib
import errno
import itertools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
import zmq

from inlay.core.clock import Clock
from inlay.core.errors import EngineError, InlayError, RequestError
from inlay.core.failures import failure_output
from inlay.core.instance_messages import FromInstance, KvLost, KvTarget
from inlay.core.messages import GenerateRequest, OutputBatch, RequestOutput, RequestTimes

log = logging.getLogger(__name__)

_FRONT = b"front"


@dataclass(slots=True, eq=False)
class Peer:
    """One connection.

    Attributes:
        address: of the socket's, for messages to it.
        number: in front of its request ids.
        name: for logs.
        subscribed: whether it hears of blocks and load.
        clocks: its live requests: what is to be added to a time here for one of its clock.
    """

    address: bytes
    number: int
    name: str
    subscribed: bool = False
    clocks: dict[str, float] = field(default_factory=dict)


class Peers:
    """The peers of a ROUTER socket. Nothing here blocks.

    Nobody says that a connection is gone: to send something there fails, which is within a second
    for those who subscribed. Its requests are then among the orphans.

    Args:
        socket: a ROUTER that refuses messages to unknown peers; owned by the caller.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", clock: Clock) -> None:
        self._socket = socket
        self._clock = clock
        self._encode = msgspec.msgpack.Encoder().encode
        self._peers: dict[bytes, Peer] = {}
        self._by_number: dict[int, Peer] = {}
        self._numbers = itertools.count(1)
        self._orphans: list[str] = []

    def connect_front(self, address: str) -> Peer:
        """Connect to the front that started this process, which hears all without asking."""
        # So named, it can be spoken to before it has said anything.
        self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, _FRONT)
        self._socket.connect(address)
        return self._peer(_FRONT)

    @property
    def subscribers(self) -> list[Peer]:
        """Those who hear of blocks and load."""
        return [peer for peer in self._peers.values() if peer.subscribed]

    @property
    def everyone(self) -> list[Peer]:
        """All that have said something and are not known to be gone."""
        return list(self._peers.values())

    # Messages

    def receive(self) -> tuple[Peer, bytes] | None:
        """The next message, and who sent it; None if there is none."""
        while True:
            try:
                address, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            peer = self._peer(address)
            if len(frames) == 1:
                return peer, frames[0]
            log.warning("a message of %d frames from %s is ignored", len(frames), peer.name)

    def send(self, peers: Iterable[Peer], message: FromInstance) -> None:
        """Send a message to each of them."""
        data = self._encode(message)
        for peer in list(peers):
            try:
                self._socket.send_multipart([peer.address, data], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
                self._drop(peer)

    def _peer(self, address: bytes) -> Peer:
        peer = self._peers.get(address)
        if peer is None:
            number = next(self._numbers)
            name = "the front" if address == _FRONT else f"peer {number}"
            peer = self._peers[address] = self._by_number[number] = Peer(address, number, name)
        return peer

    def _drop(self, peer: Peer) -> None:
        if self._peers.pop(peer.address, None) is None:
            return
        del self._by_number[peer.number]
        log.info("%s is gone; %d requests are cancelled", peer.name, len(peer.clocks))
        self._orphans += peer.clocks

    # Requests

    def take_orphans(self) -> list[str]:
        """Requests, as the engine names them, whose peer was found gone since the last call."""
        orphans, self._orphans = self._orphans, []
        return orphans

    def engine_id(self, peer: Peer, request_id: str) -> str:
        """The name that the engine has for a peer's request."""
        return f"{peer.number}:{request_id}"

    def request_id(self, engine_id: str) -> str:
        """The name that its peer has for an engine's request."""
        return self._owner(engine_id)[1]

    def admit(
        self, peer: Peer, message: GenerateRequest, add: Callable[[GenerateRequest], None]
    ) -> None:
        """Give a peer's request to the engine by `add`, under its name and in its clock there.

        Raises:
            InlayError: as `add` does, or the peer has a request of this id.
        """
        request_id = self.engine_id(peer, message.request_id)
        if request_id in peer.clocks:
            raise RequestError(f"request id {message.request_id!r} is in use", "request_id")
        ahead_s = 0.0
        if message.age_s is not None:
            ahead_s = message.arrival_s - (self._clock.now() - message.age_s)
        add(
            msgspec.structs.replace(
                message, request_id=request_id, arrival_s=message.arrival_s - ahead_s
            )
        )
        peer.clocks[request_id] = ahead_s
        log.debug(
            "request taken",
            extra={
                "request": message.request_id,
                "phase": message.phase,
                "prompt_tokens": len(message.token_ids),
            },
        )

    def take(
        self, peer: Peer, message: GenerateRequest, add: Callable[[GenerateRequest], None]
    ) -> None:
        """As `admit`; of a request that cannot be given to the engine its peer is told why."""
        try:
            self.admit(peer, message, add)
        except InlayError as error:
            self.refuse(peer, message.request_id, error)
        except Exception as error:
            log.exception("request %s of %s cannot be added", message.request_id, peer.name)
            refusal = EngineError(f"the request cannot be added: {error!r}")
            self.refuse(peer, message.request_id, refusal)

    def refuse_unread(self, peer: Peer, data: bytes, error: Exception) -> None:
        """Answer a message that is not what it should be, so that nobody waits for it."""
        log.error("a message of %d bytes from %s cannot be read: %s", len(data), peer.name, error)
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            match msgspec.msgpack.decode(data):
                case ["GenerateRequest", str(request_id), *_]:
                    refusal = RequestError(f"the request has a wrong type: {error}")
                    self.refuse(peer, request_id, refusal)

    def refuse(self, peer: Peer, request_id: str, error: InlayError) -> None:
        """Tell a peer that its request is not accepted."""
        self.send([peer], OutputBatch((failure_output(request_id, error),)))

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Send the outputs of a step: one message to each peer that has requests in it."""
        batches: dict[Peer, list[RequestOutput]] = {}
        for output in outputs:
            peer, request_id = self._owner(output.request_id)
            if peer is None:  # it is gone
                continue
            ahead_s = peer.clocks.get(output.request_id, 0.0)
            if output.finished:
                peer.clocks.pop(output.request_id, None)
                log.debug("request ended", extra={"request": request_id, "error": output.error})
            times = output.times
            if times is not None and ahead_s:
                times = _shifted(times, ahead_s)
            batches.setdefault(peer, []).append(
                msgspec.structs.replace(output, request_id=request_id, times=times)
            )
        for peer, batch in batches.items():
            self.send([peer], OutputBatch(tuple(batch)))

    def deliver_kv(self, message: KvTarget | KvLost) -> None:
        """Tell the peer whose request it is what becomes of a prompt's KV."""
        peer, request_id = self._owner(message.request_id)
        if peer is not None:
            self.send([peer], msgspec.structs.replace(message, request_id=request_id))

    def _owner(self, engine_id: str) -> tuple[Peer | None, str]:
        number, _, request_id = engine_id.partition(":")
        return self._by_number.get(int(number)), request_id


def _shifted(times: RequestTimes, by_s: float) -> RequestTimes:
    return RequestTimes(
        arrival_s=times.arrival_s + by_s,
        scheduled_s=times.scheduled_s + by_s,
        first_token_s=times.first_token_s + by_s,
        finished_s=times.finished_s + by_s,
    )
