"""What anybody on the network can do to an engine's port."""

import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from inlay.core.errors import (
    AddressInUseError,
    PeerRefusedError,
    PeerUnreachableError,
    ProtocolError,
    ProtocolVersionError,
)
from inlay.transfer import TransferEngine
from tests.integration.transfer.conftest import Target
from tests.integration.transfer.target import SIZE, TOKEN, pattern


def dial(target: Target) -> socket.socket:
    host, port = target.address.split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def works(engine: TransferEngine, target: Target) -> None:
    local = engine.allocate(100000)
    engine.read(local, engine.connect(target.address)["source"][5:100005])
    np.testing.assert_array_equal(np.frombuffer(local, np.uint8), pattern(SIZE)[5:100005])


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def dial_side_channel(target: Target) -> socket.socket:
    """To one of the Unix sockets at which it listens."""
    links = [os.readlink(file) for file in Path(f"/proc/{target.process.pid}/fd").iterdir()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:")}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *name = line.split()
        if inode in inodes and int(flags, 16) & 0x10000:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(5)
            connection.connect(name[0].replace("@", "\0", 1))
            return connection
    raise AssertionError("it has no side channel")


def cpu_s(target: Target) -> float:
    fields = Path(f"/proc/{target.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def fake_server(answer: bytes) -> Iterator[str]:
    """Answers every connection with the same bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(80)
                    connection.sendall(answer)
                    connection.settimeout(2)
                    is_closed(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("call", [dial, dial_side_channel])
def test_no_descriptor_is_left(target: Target, call: Callable[[Target], socket.socket]) -> None:
    """Who connects waits meanwhile, which costs the engine nothing, and is heard later."""
    pid = target.process.pid
    used = {int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()}
    lowest_free = next(number for number in range(len(used) + 1) if number not in used)
    _, most = before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, most))
    with call(target) as connection:
        connection.sendall(b"garbage".ljust(80))
        begin = cpu_s(target)
        with pytest.raises(TimeoutError):
            connection.settimeout(1)
            connection.recv(1)
        assert cpu_s(target) - begin < 0.2
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        connection.settimeout(5)
        assert is_closed(connection)


def test_garbage(engine: TransferEngine, target: Target) -> None:
    rng = np.random.default_rng(0)
    works(engine, target)
    for size in (80, 81, 500, 100000):
        with dial(target) as connection:
            try:
                connection.sendall(rng.bytes(size))
            except ConnectionError:
                continue
            assert is_closed(connection)
    with dial(target) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".ljust(80))
        assert is_closed(connection)
    works(engine, target)


def test_a_hello_without_a_proof(target: Target) -> None:
    hello = struct.pack("<8sHHB3x16sQ32s", b"INLYXFR1", 1, 1, 0, bytes(16), 9, bytes(32))
    with dial(target) as connection:
        connection.sendall(hello)
        assert len(connection.recv(96, socket.MSG_WAITALL)) == 96
        connection.sendall(bytes(32))
        refusal = connection.recv(100)
        assert refusal[:12] == b"INLYXFR1" + struct.pack("<HH", 3, 12)
        assert is_closed(connection)


def test_another_version(engine: TransferEngine, target: Target) -> None:
    with dial(target) as connection:
        hello = struct.pack("<8sHHB3x16sQ32s", b"INLYXFR1", 7, 9, 0, bytes(16), 9, bytes(32))
        connection.sendall(hello)
        assert struct.unpack("<8sHHHH", connection.recv(100)) == (b"INLYXFR1", 3, 14, 1, 1)
    answer = struct.pack("<8sHHHH", b"INLYXFR1", 3, 14, 7, 9)
    with fake_server(answer) as address:
        with pytest.raises(ProtocolVersionError, match=r"versions 7 to 9.* 1 to 1"):
            engine.connect(address)


def test_something_else_listens(engine: TransferEngine) -> None:
    with fake_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        with pytest.raises(ProtocolError, match=f"{address} is no Inlay"):
            engine.connect(address)


def test_a_port_that_never_answers(engine: TransferEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(PeerUnreachableError, match="does not answer"):
            engine.connect(address, timeout_s=0.2)
    with pytest.raises(PeerUnreachableError, match="Connection refused"):
        engine.connect(address)


def test_another_token(target: Target) -> None:
    with TransferEngine(token=b"another token of 32 bytes or so.") as stranger:
        with pytest.raises(PeerRefusedError, match="another token"):
            stranger.connect(target.address)


def test_flood(engine: TransferEngine, target: Target) -> None:
    pid = target.process.pid
    with ExitStack() as stack:
        connections = [stack.enter_context(dial(target)) for _ in range(300)]
        works(engine, target)
        assert len(os.listdir(f"/proc/{pid}/fd")) < 120
        # What proves nothing within two seconds is closed.
        end = time.monotonic() + 10
        while len(os.listdir(f"/proc/{pid}/fd")) > 40:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert all(is_closed(connection) for connection in connections)
    works(engine, target)


def test_connect_during_a_flood(engine: TransferEngine, target: Target) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with ExitStack() as stack:
                for _ in range(50):
                    stack.enter_context(dial(target))

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        works(engine, target)
    finally:
        stop.set()
        thread.join()


def test_listens_on_loopback_only(engine: TransferEngine) -> None:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    hosts = [row[1].split(":")[0] for row in rows if int(row[1].split(":")[1], 16) == engine.port]
    assert hosts == ["0100007F"] * len(hosts) and hosts


def test_a_taken_port(target: Target) -> None:
    with pytest.raises(AddressInUseError, match=target.address):
        TransferEngine(target.address, token=TOKEN)
