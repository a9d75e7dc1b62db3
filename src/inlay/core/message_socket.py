"""A ZeroMQ socket that an event loop reads, without a thread and without polling."""

import asyncio
from collections.abc import Callable
from typing import Any

import zmq

_AT_ONCE = 256
"""Messages read before other work of the loop has its turn."""


class MessageSocket:
    """Gives each message to a function, on the running event loop. Owns the socket.

    Args:
        socket: of any type that receives; bound or connected.
        received: called with the frames of a message. It may close this socket.
    """

    def __init__(
        self, socket: "zmq.Socket[bytes]", received: Callable[[list[bytes]], None]
    ) -> None:
        self._socket = socket
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._fd: int = socket.fileno()
        self._loop.add_reader(self._fd, self.receive)
        self._loop.call_soon(self.receive)  # ZMQ_FD tells of changes, not of what is there already

    def send(self, data: bytes) -> bool:
        """Send one frame, without waiting; False if nobody can take it."""
        if self._socket.closed:
            return False
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        # Sending may consume the edge that announces a message (ZMQ_FD is edge-triggered).
        self._loop.call_soon(self.receive)
        return True

    def receive(self) -> None:
        """Read what has come."""
        for _ in range(_AT_ONCE):
            if self._socket.closed:
                return
            try:
                frames: list[Any] = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._received(frames)
        self._loop.call_soon(self.receive)

    def close(self, linger_ms: int = 0) -> None:
        """Leave. What was sent within `linger_ms` still goes out."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=linger_ms)
