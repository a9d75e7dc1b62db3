"""Entries in Redis: keys that expire `LEASE_S` after the engine was last heard of."""

import socket
import time

from inlay.core.errors import EndpointError
from inlay.transfer.directory.base import ASK_S, LEASE_S, MAX_ANSWER_BYTES, Directory, Entry

# Both change a key only if it is ours: KEYS[1]; our id, and for the first value and milliseconds.
RENEW = """
local held = redis.call('GET', KEYS[1])
if held and cjson.decode(held).id ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
WITHDRAW = """
local held = redis.call('GET', KEYS[1])
if held and cjson.decode(held).id == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

Reply = bytes | int | None


class RedisDirectory(Directory):
    """See `Directory`. A connection per question: engines ask every few seconds."""

    def __init__(self, host: str, port: int, database: int, password: str | None) -> None:
        self.url = f"redis://{host}:{port}/{database}"
        self.server = host, port
        self._hello: list[tuple[str, ...]] = []
        if password is not None:
            self._hello.append(("AUTH", password))
        if database:
            self._hello.append(("SELECT", str(database)))

    def publish(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> None:
        """See `Directory`."""
        lease_ms = str(LEASE_S * 1000)
        self._ask(timeout_s, "SET", _key(name), entry.to_bytes(), "PX", lease_ms)

    def renew(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> bool:
        """See `Directory`."""
        value, lease_ms = entry.to_bytes(), str(LEASE_S * 1000)
        return self._ask(timeout_s, "EVAL", RENEW, "1", _key(name), entry.id, value, lease_ms) == 1

    def withdraw(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> None:
        """See `Directory`."""
        self._ask(timeout_s, "EVAL", WITHDRAW, "1", _key(name), entry.id)

    def look_up(self, name: str, *, timeout_s: float = ASK_S) -> Entry | None:
        """See `Directory`."""
        held = self._ask(timeout_s, "GET", _key(name))
        if not isinstance(held, bytes):
            return None
        return Entry.from_bytes(held, f"{name} in {self.url}")

    def _ask(self, timeout_s: float, *command: str | bytes) -> Reply:
        try:
            with _Connection(self.server, timeout_s) as connection:
                for hello in self._hello:
                    connection.ask(hello)
                return connection.ask(command)
        except (OSError, ValueError) as error:
            raise self.unreachable(error) from error
        except _RedisError as error:
            raise EndpointError(f"{self.url} answers {command[0]!r} with: {error}") from None


class _RedisError(Exception):
    """An error reply."""


class _Connection:
    """RESP version 2, as far as the commands here need it."""

    def __init__(self, server: tuple[str, int], timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._wire = socket.create_connection(server, timeout_s)
        self._bytes = b""

    def ask(self, command: tuple[str | bytes, ...]) -> Reply:
        """Send a command, return its reply; OSError, ValueError or _RedisError if there is none."""
        parts = [part.encode() if isinstance(part, str) else part for part in command]
        sent = b"*%d\r\n" % len(parts)
        sent += b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self._wire.settimeout(self._left())
        self._wire.sendall(sent)
        kind, text = (line := self._line())[:1], line[1:]
        if kind == b"-":
            raise _RedisError(text.decode(errors="replace"))
        if kind == b"+":
            return text
        if kind == b":":
            return int(text)
        if kind == b"$":
            size = int(text)
            return None if size < 0 else self._take(size + 2)[:-2]
        raise ValueError(f"{line[:60]!r} is no Redis reply")

    def _line(self) -> bytes:
        while b"\r\n" not in self._bytes:
            self._receive()
        line, _, self._bytes = self._bytes.partition(b"\r\n")
        return line

    def _take(self, size: int) -> bytes:
        if size > MAX_ANSWER_BYTES:
            raise ValueError(f"a reply of {size} bytes")
        while len(self._bytes) < size:
            self._receive()
        taken, self._bytes = self._bytes[:size], self._bytes[size:]
        return taken

    def _receive(self) -> None:
        self._wire.settimeout(self._left())
        got = self._wire.recv(4096)
        if not got:
            raise ConnectionError("it closed the connection")
        self._bytes += got
        if len(self._bytes) > 2 * MAX_ANSWER_BYTES:
            raise ValueError("a line without an end")

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self._timeout_s:g} s")
        return left

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *error: object) -> None:
        self._wire.close()


def _key(name: str) -> str:
    return f"inlay:engines:{name}"
