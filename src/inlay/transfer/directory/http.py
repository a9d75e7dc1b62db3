"""Entries in any service that stores bodies: PUT, GET and DELETE of `PATH?key=NAME`.

Such a service knows no leases: the entry of a process that was killed stays until its name is
published again. The form of requests is that of Mooncake's HTTP metadata server.
"""

import http.client
from urllib.parse import quote

from inlay.core.errors import EndpointError
from inlay.core.http import ask_http
from inlay.transfer.directory.base import ASK_S, Directory, Entry


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
