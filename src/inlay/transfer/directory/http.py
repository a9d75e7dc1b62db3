"""Entries in any service that stores bodies: PUT, GET and DELETE of `PATH?key=NAME`.

Such a service knows no leases: the entry of a process that was killed stays until its name is
published again. The form of requests is that of Mooncake's HTTP metadata server.
"""

import contextlib
import http.client
import socket
import threading
import time
from urllib.parse import quote

from inlay.core.errors import EndpointError
from inlay.transfer.directory.base import ASK_S, MAX_ANSWER_BYTES, Directory, Entry


def ask_http(
    host: str, port: int, method: str, target: str, body: bytes | None, timeout_s: float
) -> tuple[int, bytes]:
    """One request on a connection of its own; status and body.

    Raises:
        OSError, http.client.HTTPException: no answer, or none that is HTTP, within `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    with contextlib.closing(connection):
        connection.connect()
        # The timeout of a socket is one of silence; a server that drips would get past it.
        wire = connection.sock
        late = threading.Timer(max(0, end - time.monotonic()), _shut, [wire])
        late.daemon = True
        late.start()
        try:
            connection.request(method, target, body, {"Connection": "close"})
            answer = connection.getresponse()
            found = answer.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException):
            if time.monotonic() >= end:
                raise TimeoutError(f"no answer within {timeout_s:g} s") from None
            raise
        finally:
            late.cancel()
    if time.monotonic() >= end:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    if len(found) > MAX_ANSWER_BYTES:
        raise http.client.HTTPException(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return answer.status, found


def _shut(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)


class HttpDirectory(Directory):
    """See `Directory`. Between its question and its answer another engine may take the name."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self.url = f"http://{host}:{port}{path}"
        self.server = host, port
        self._path = path

    def publish(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> None:
        """See `Directory`."""
        self._ask("PUT", name, entry.to_bytes(), timeout_s)

    def renew(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> bool:
        """See `Directory`."""
        held = self.look_up(name, timeout_s=timeout_s)
        if held is None:
            self.publish(name, entry, timeout_s=timeout_s)
        return held is None or held.id == entry.id

    def withdraw(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> None:
        """See `Directory`."""
        held = self.look_up(name, timeout_s=timeout_s)
        if held is not None and held.id == entry.id:
            self._ask("DELETE", name, None, timeout_s)

    def look_up(self, name: str, *, timeout_s: float = ASK_S) -> Entry | None:
        """See `Directory`."""
        body = self._ask("GET", name, None, timeout_s)
        return None if body is None else Entry.from_bytes(body, f"{name} in {self.url}")

    def _ask(self, method: str, name: str, body: bytes | None, timeout_s: float) -> bytes | None:
        target = f"{self._path}?key={quote('inlay/engines/' + name, safe='')}"
        try:
            status, answer = ask_http(*self.server, method, target, body, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise self.unreachable(error) from error
        if status == 404 and method != "PUT":
            return None
        if not 200 <= status < 300:
            text = answer[:200].decode(errors="replace")
            raise EndpointError(f"{self.url} answers {method} with {status}: {text}", status)
        return answer
