"""Services that keep names of engines: Debian's etcd and Redis, and a small one over HTTP."""

import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

KINDS = ("etcd", "redis", "http")
PROGRAMS = {"etcd": "etcd", "redis": "redis-server"}
START_S = 20


def missing_program(kind: str) -> str | None:
    """Why this kind cannot be started here, or None."""
    program = PROGRAMS.get(kind)
    if program is None or shutil.which(program):
        return None
    return f"no {program} (Debian: {kind}-server)"


def free_port() -> int:
    """A port of loopback that nobody listens on now.

    It lies below those that the system gives to connections and to who asks for any port: until
    somebody listens there, nothing else that runs meanwhile is given it. Below it are those that
    Ray gives to its workers, 10,002 to 19,999.
    """
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    draw = random.SystemRandom()  # other processes of tests draw others
    while True:
        port = draw.randrange(20_000, max(int(given[0]), 30_000))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Service:
    """A running service. `stop` and `start` keep its port, not its contents.

    Attributes:
        url: as `TransferEngine(directory=...)` takes it.
    """

    def __init__(self, kind: str, folder: Path, password: str | None = None) -> None:
        self._kind = kind
        self._folder = folder
        self._password = password
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._http: ThreadingHTTPServer | None = None
        path = "/metadata" if kind == "http" else ""
        user = f":{password}@" if password else ""
        self.url = f"{kind}://{user}127.0.0.1:{self.port}{path}"
        self.start()

    def start(self) -> None:
        """Return when it answers."""
        if self._kind == "http":
            self._http = ThreadingHTTPServer(("127.0.0.1", self.port), _handler())
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
            return
        self._process = subprocess.Popen(
            self._command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < end and self._process.poll() is None, "it does not start"
            time.sleep(0.02)

    def stop(self) -> None:
        """End it; what it kept is lost."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self._folder / "etcd", ignore_errors=True)

    def _command(self) -> list[str]:
        if self._kind == "redis":
            command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
            command += ["--save", "", "--dir", str(self._folder)]
            return command + (["--requirepass", self._password] if self._password else [])
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        return [
            "etcd", "--data-dir", str(self._folder / "etcd"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]  # fmt: skip

    def _answers(self) -> bool:
        """Whether it does real work: etcd listens before it has a leader."""
        question = b"PING\r\n"
        if self._kind == "etcd":
            body = b'{"key":"eA==","value":"eA=="}'
            question = b"POST /v3/kv/put HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as wire:
                wire.settimeout(1)
                wire.sendall(question)
                answer = wire.recv(4096)
        except OSError:
            return False
        return b" 200 " in answer or answer.startswith((b"+PONG", b"-NOAUTH"))


@contextmanager
def running(kind: str, folder: Path, password: str | None = None) -> Iterator[Service]:
    """A service of this kind that ends with the block."""
    service = Service(kind, folder, password)
    try:
        yield service
    finally:
        service.stop()


def _handler() -> type[BaseHTTPRequestHandler]:
    """PUT, GET and DELETE of /metadata?key=..., in memory."""
    kept: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _key(self) -> str:
            parts = urlsplit(self.path)
            assert parts.path == "/metadata"
            return parse_qs(parts.query)["key"][0]

        def do_GET(self) -> None:
            body = kept.get(self._key())
            self._answer(404 if body is None else 200, body or b"")

        def do_PUT(self) -> None:
            kept[self._key()] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200)

        def do_DELETE(self) -> None:
            self._answer(404 if kept.pop(self._key(), None) is None else 200)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
