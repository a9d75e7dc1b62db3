"""One HTTP request with a limit on time and size, by the standard library alone."""

import contextlib
import http.client
import socket
import threading
import time

MAX_ANSWER_BYTES = 64 << 10


def ask_http(
    host: str, port: int, method: str, target: str, body: bytes | None, timeout_s: float
) -> tuple[int, bytes]:
    """One request on a connection of its own; status and body.

    Raises:
        OSError, http.client.HTTPException: no answer, or none that is HTTP, within `timeout_s`, or
            one of more than `MAX_ANSWER_BYTES`.
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
