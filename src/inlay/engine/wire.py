"""The socket between a front and its engine's process: addresses and encoding."""

from pathlib import Path

import msgspec
import zmq

from inlay.engine.config import EngineConfig

# Exit status of an engine process that could say why it did not start.
START_FAILED = 3


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reads from its standard input, one line of JSON.

    Attributes:
        directory: private directory of the socket; both sides remove it when they end.
        parent_pid: the process whose end is also the worker's.
    """

    config: EngineConfig
    directory: str
    parent_pid: int


def address(directory: Path | str) -> str:
    """ZeroMQ address of the socket in a directory."""
    return f"ipc://{directory}/engine"


def new_socket(context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    """One end of the pair: queues without limit, since both sides always read."""
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 1000)
    return socket
