"""Asks a supervisor, for commands."""

import msgspec
import zmq

from inlay.cluster.control import Done, FromSupervisor, Refused, Roster, Status, ToSupervisor
from inlay.core.errors import DeploymentError, WaitTimeoutError
from inlay.core.failures import restore


def ask(address: str, message: ToSupervisor, *, timeout_s: float) -> Done | Status:
    """Send one message and wait for its answer.

    Raises:
        WaitTimeoutError: there was none in `timeout_s`; what was asked for may go on.
        InlayError: the supervisor's own reason to refuse.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        socket.connect(address)
        socket.send(msgspec.msgpack.encode(message))
        if not socket.poll(int(1000 * timeout_s)):
            raise WaitTimeoutError(
                f"the supervisor at {address} did not answer in {timeout_s:g} s; what it was asked "
                "for goes on where it began: inlay status shows it"
            )
        answer: FromSupervisor = msgspec.msgpack.decode(socket.recv(), type=FromSupervisor)
    finally:
        socket.close()
        context.term()
    match answer:
        case Refused():
            raise restore(answer.code, answer.message)
        case Roster():
            raise DeploymentError("the supervisor answered with a roster: it is of another version")
    return answer
