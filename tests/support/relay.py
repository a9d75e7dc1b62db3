"""A wire between two processes that can be cut."""

import socket
import threading
from contextlib import suppress

CHUNK = 1 << 16


class Relay:
    """Passes on whatever comes to `address`, until it is cut.

    Args:
        target: host:port.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._whole = threading.Event()
        self._whole.set()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, silently: bool) -> None:
        """Let nothing pass; `silently`, or with an end of all connections."""
        self._whole.clear()
        if not silently:
            self._close_sockets()

    def restore(self) -> None:
        """Let pass what waits, and what comes."""
        self._whole.set()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close_sockets()
        self._whole.set()

    def _close_sockets(self) -> None:
        with self._lock:
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._sockets.clear()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._whole.wait()
        try:
            far = socket.create_connection(self._target, 5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            self._sockets += [near, far]
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                self._whole.wait()
                sink.sendall(chunk)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets = [one for one in self._sockets if one not in (source, sink)]
        source.close()
