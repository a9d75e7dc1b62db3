"""What every HTTP server of ours does: take a port first, serve on it, and end when asked to."""

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from inlay.core.errors import AddressInUseError, ConfigError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

BACKLOG = 2048
CLOSE_S = 2.0
"""How long connections may take to close once nothing runs any more."""


def bind(
    host: str, port: int, *, option: str = "--port {port}", shared: bool = False
) -> socket.socket:
    """Take an address, before anything slow is done, and listen on it.

    Args:
        option: how a user chooses another port, for the message about one that is taken.
        shared: others of ours may have the same port (SO_REUSEPORT). It is only taken: whoever
            listens gets connections, so the server listens when it is ready for them.

    Raises:
        AddressInUseError: the port is taken.
        ConfigError: the address is not one of this machine's, or needs other rights.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} is no address: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        if not shared:
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            other = option.format(port=port + 1 if port < 65535 else 8000)
            raise AddressInUseError(
                f"port {port} on {host} is in use: stop the process that listens there, or choose "
                f"another port with {other}"
            ) from None
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def shown_host(asked: str, bound: str) -> str:
    """The host of a URL that leads to who listens on `bound`."""
    host = "127.0.0.1" if bound in ("0.0.0.0", "::") else asked
    return f"[{host}]" if ":" in host else host


class _OneWrite:
    """A transport that sends what is written in one turn of the event loop at once.

    Head and body of an answer come apart: two calls of the system, and two times that its client is
    woken.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        written, self._written = self._written, []
        if written and not self._transport.is_closing():
            self._transport.write(b"".join(written))


def _web_socket(**fields: Any) -> asyncio.Protocol:
    """Make uvicorn's protocol for a web socket; the first call imports it.

    Only the pages use web sockets, and a server that no browser visits needs none of it.
    """
    from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

    assert AutoWebSocketsProtocol is not None, (
        "NiceGUI requires packages of web sockets that uvicorn takes"
    )
    return AutoWebSocketsProtocol(**fields)


@asynccontextmanager
async def http_server(
    listener: socket.socket, app: "ASGIApp", *, access_log: bool = False
) -> AsyncIterator["uvicorn.Server"]:
    """uvicorn on the listening socket; closes its connections at the end."""
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Protocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(cast(asyncio.Transport, _OneWrite(transport)))

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server = Server(
        uvicorn.Config(
            app,
            http=Protocol,
            ws=_web_socket,  # type: ignore[arg-type]
            lifespan="off",
            log_level="info" if access_log else "error",
            access_log=access_log,
            server_header=False,
            timeout_keep_alive=65,
            timeout_graceful_shutdown=CLOSE_S,  # type: ignore[arg-type]
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield server
    finally:
        server.should_exit = True
        await serving


class StopSignals:
    """SIGINT and SIGTERM: the first asks for a stop, a second one insists."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside this block."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def insist(self) -> None:
        """Ask and insist: the process that we serve for is gone."""
        self.asked.set()
        self.insisted.set()

    def _on_signal(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()
