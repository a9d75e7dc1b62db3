"""A small HTTP server for the programs of this package: routes, and threads that answer."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from inlay.core.errors import AddressInUseError

logger = logging.getLogger(__name__)
READ_S = 30.0


@dataclass(frozen=True)
class Request:
    """What is asked.

    Attributes:
        tail: the path behind the route's, decoded.
        query: by name, the first value of each.
    """

    tail: str
    query: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What is answered."""

    status: int
    body: bytes
    content_type: str = "application/json"

    @classmethod
    def json(cls, status: int, content: Any) -> "Answer":
        """With a JSON body."""
        return cls(status, json.dumps(content).encode())

    @classmethod
    def text(cls, status: int, text: str) -> "Answer":
        """With a text."""
        return cls(status, text.encode(), "text/plain; charset=utf-8")


# By method and path; a path that ends with "/" stands for all below it.
Routes = Mapping[tuple[str, str], Callable[[Request], Answer]]


class HttpService:
    """Answers until it is closed, from threads of its own.

    Args:
        routes: who answers what.
        max_body_bytes: longer bodies are refused with 413.

    Raises:
        AddressInUseError: the port is taken.
    """

    def __init__(self, host: str, port: int, routes: Routes, *, max_body_bytes: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = READ_S
            protocol_version = "HTTP/1.1"

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self._respond
                raise AttributeError(name)

            def _respond(self) -> None:
                answer = _answer(self, routes, max_body_bytes)
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: Any) -> None:
                logger.debug(format, *args)

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise AddressInUseError(f"cannot listen at {host}:{port}: {error.strerror}") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="inlay-http", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def alive(self) -> bool:
        """Whether it answers."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _answer(handler: BaseHTTPRequestHandler, routes: Routes, max_body_bytes: int) -> Answer:
    length = handler.headers.get("Content-Length", "0")
    if not length.isdigit() or int(length) > max_body_bytes:
        handler.close_connection = True  # its body is not read
        return Answer.text(413, f"at most {max_body_bytes} bytes")
    parts = urlsplit(handler.path)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    body = handler.rfile.read(int(length))
    for (method, path), respond in routes.items():
        below = path.endswith("/") and parts.path.startswith(path)
        if method == handler.command and (below or parts.path == path):
            try:
                return respond(Request(unquote(parts.path[len(path) :]), query, body))
            except Exception as error:  # one request must not end the thread of others
                logger.exception("%s %s", method, path)
                return Answer.json(500, {"error": str(error)})
    known = {path for _, path in routes}
    return Answer.text(405 if parts.path in known else 404, "there is nothing here")
