"""Redis over a unix socket or TCP, with persistence off; asked for calls by `drivers.py`.

Runs in the environment `redis` (packages redis and hiredis, Debian redis-server):

    python -m benchmarks.store.peer_redis unix|tcp
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import redis  # type: ignore[import-not-found]

from benchmarks.store.calls import answer
from benchmarks.transfer.calls import ARENA_BYTES, claim_stdout

START_S = 10.0


class RedisClient:
    """Values are bytes, which redis-py takes and gives."""

    def __init__(self, connection: "redis.Redis") -> None:
        self._redis = connection
        self._arena = memoryview(bytearray(b"\1") * ARENA_BYTES)

    def put(self, keys: Sequence[str], offsets: Sequence[int], value_bytes: int) -> None:
        """New ones."""
        values = [self._arena[offset : offset + value_bytes] for offset in offsets]
        if len(keys) == 1:
            self._redis.set(keys[0], values[0])
        else:
            self._redis.mset(dict(zip(keys, values, strict=True)))

    def get(self, keys: Sequence[str], value_bytes: int) -> None:
        """As bytes."""
        values = [self._redis.get(keys[0])] if len(keys) == 1 else self._redis.mget(keys)
        assert all(len(value) == value_bytes for value in values)

    def get_into(self, keys: Sequence[str], offsets: Sequence[int], value_bytes: int) -> None:
        """As bytes: it has no other way."""
        self.get(keys, value_bytes)

    def exists(self, keys: Sequence[str]) -> None:
        """All of them are there."""
        if len(keys) == 1:
            assert self._redis.exists(keys[0])
            return
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(key)
        assert all(pipeline.execute())

    def remove(self, keys: Sequence[str]) -> None:
        """Whether they are there or not."""
        self._redis.delete(*keys)


def main(answers: int) -> None:
    """Start a server, connect, answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="inlay-redis-")
    options = {
        "port": port, "bind": "127.0.0.1", "unixsocket": f"{folder}/socket", "save": "",
        "appendonly": "no", "dir": folder, "proto-max-bulk-len": "1gb",
        "client-query-buffer-limit": "1gb",
    }  # fmt: skip
    arguments = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
    subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL)
    if sys.argv[1] == "unix":
        connection = redis.Redis(unix_socket_path=options["unixsocket"])
    else:
        connection = redis.Redis(host="127.0.0.1", port=port)
    end = time.monotonic() + START_S
    while True:
        try:
            connection.ping()
            break
        except redis.ConnectionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
    answer(answers, RedisClient(connection))


if __name__ == "__main__":
    main(claim_stdout())
