"""`mooncake_http_metadata_server`: bodies under keys, where engines publish their addresses.

`python -m inlay.connect.mooncake.metadata_server --port=8080`, or a switch of the master. Nobody
needs it where engines find each other by address ("P2PHANDSHAKE"), and no store does.
"""

import enum
import sys
import threading
from collections.abc import Sequence

from inlay.connect.mooncake.flags import parse_flags
from inlay.connect.mooncake.http_service import Answer, HttpService, Request
from inlay.connect.mooncake.program import run_program
from inlay.core.stop_signals import stop_signals

PATH = "/metadata"
MAX_BODY_BYTES = 1 << 20
MAX_KEYS = 1 << 16


class KVPoll(enum.Enum):
    """Whether a server answers."""

    Failed = 0
    Success = 4


class KVBootstrapServer:
    """Keeps bodies under keys until it is closed: GET, PUT and DELETE of `/metadata?key=`.

    A key with `rpc_meta` in it is taken once, until it is deleted (400). Others may be replaced.
    """

    def __init__(self, port: int, host: str = "0.0.0.0") -> None:
        self.host = host
        self.port = port
        self._bodies: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._service: HttpService | None = None

    def run(self) -> None:
        """Listen. Raises `AddressInUseError`."""
        routes = {("GET", PATH): self._get, ("PUT", PATH): self._put, ("DELETE", PATH): self._drop}
        self._service = HttpService(self.host, self.port, routes, max_body_bytes=MAX_BODY_BYTES)
        self.port = self._service.port

    def close(self) -> None:
        """Forget all."""
        if self._service is not None:
            self._service.close()
            self._service = None

    def poll(self) -> KVPoll:
        """Whether it answers."""
        service = self._service
        return KVPoll.Success if service is not None and service.alive else KVPoll.Failed

    def _get(self, request: Request) -> Answer:
        key = request.query.get("key", "")
        with self._lock:
            body = self._bodies.get(key)
        return _missing(key) if body is None else Answer(200, body)

    def _put(self, request: Request) -> Answer:
        key = request.query.get("key", "")
        if not key:
            return _missing(key)
        with self._lock:
            if "rpc_meta" in key and key in self._bodies:
                return Answer.text(400, "Duplicate rpc_meta key not allowed")
            if len(self._bodies) >= MAX_KEYS and key not in self._bodies:
                return Answer.text(507, f"at most {MAX_KEYS} keys")
            self._bodies[key] = request.body
        return Answer.text(200, "metadata updated")

    def _drop(self, request: Request) -> Answer:
        key = request.query.get("key", "")
        with self._lock:
            body = self._bodies.pop(key, None)
        return _missing(key) if body is None else Answer.text(200, "metadata deleted")


def _missing(key: str) -> Answer:
    if not key:
        return Answer.text(400, "metadata key is required")
    return Answer.text(404, "metadata not found")


def serve(argv: Sequence[str]) -> int:
    """Serve until a stop signal."""
    known = {"port": "8080", "host": "127.0.0.1"}
    flags = parse_flags(argv, known, ("log_level",))
    server = KVBootstrapServer(int(flags.number("port")), flags.values["host"])
    server.run()
    with stop_signals() as wait:
        print(f"metadata at http://{server.host}:{server.port}{PATH}", flush=True)
        wait()
    server.close()
    return 0


def main() -> None:
    """The program."""
    run_program(serve, sys.argv[1:])


if __name__ == "__main__":
    main()
