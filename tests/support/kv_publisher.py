"""A publisher of KV events as vLLM has it: numbered messages, some of which it says again."""

import threading
from collections import deque

import msgspec
import zmq

from inlay.connect.foreign.kv_events import BlockRemoved, BlockStored

END = (-1).to_bytes(8, "big", signed=True)


class KvPublisher:
    """On free ports of this machine, in a thread for replays.

    Args:
        kept: messages that can be said again; 0: there is no replay.

    Attributes:
        events, replay: addresses of its sockets.
        published: how many messages.
        asked: numbers from which on somebody asked.
        answers: while it is not set, nobody is answered, with what was kept when they asked.
    """

    def __init__(self, kept: int = 1000) -> None:
        self.published = 0
        self.asked: list[int] = []
        self.answers = threading.Event()
        self.answers.set()
        self._context = zmq.Context()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._lock = threading.Lock()
        self._pub = self._context.socket(zmq.XPUB)  # it hears of subscribers
        self._pub.bind("tcp://127.0.0.1:0")
        self.events = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay: str | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        if kept:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.bind("tcp://127.0.0.1:0")
            self.replay = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()

    def wait_subscribed(self, timeout_s: float = 20.0) -> None:
        """Until somebody subscribes."""
        assert self._pub.poll(1000 * timeout_s), "nobody subscribes"
        self._pub.recv()

    def publish(self, *events: object, lose: bool = False, keep: bool = True) -> None:
        """Say something; `lose`: it does not arrive; without `keep` it is not said again."""
        number = self.published
        payload = msgspec.msgpack.encode([0.0, [_plain(event) for event in events], 0])
        if keep:
            with self._lock:
                self._kept.append((number, payload))
        self.published += 1
        if not lose:
            self._pub.send_multipart([b"kv", number.to_bytes(8, "big"), payload])

    def say_late(self, numbers: range) -> None:
        """Let messages that are kept arrive now, as if they had been on their way."""
        for number, payload in list(self._kept):
            if number in numbers:
                self._pub.send_multipart([b"kv", number.to_bytes(8, "big"), payload])

    def restart(self) -> None:
        """Be another run: numbers begin again."""
        with self._lock:
            self._kept.clear()
        self.published = 0

    def close(self) -> None:
        self._stopping = True
        self.answers.set()
        if self._thread is not None:
            self._thread.join(5)
            self._router.close(linger=0)
        self._pub.close(linger=0)
        self._context.term()

    def _serve(self) -> None:
        while not self._stopping:
            if not self._router.poll(50):
                continue
            client, _, first = self._router.recv_multipart()
            with self._lock:
                kept = list(self._kept)
            self.asked.append(int.from_bytes(first, "big"))
            self.answers.wait()
            for number, payload in kept:
                if number >= self.asked[-1]:
                    frames = [client, b"", b"kv", number.to_bytes(8, "big"), payload]
                    self._router.send_multipart(frames)
            self._router.send_multipart([client, b"", b"", END, b""])


def stored(
    tokens: list[int], block_tokens: int = 16, first: int = 0, **fields: object
) -> BlockStored:
    """Blocks of a prompt, from one of them on, under names that follow from their tokens."""
    names = block_names(tokens, block_tokens)
    return BlockStored(
        block_hashes=names[first:],
        parent_block_hash=names[first - 1] if first else None,
        token_ids=tokens[first * block_tokens : len(names) * block_tokens],
        block_size=block_tokens,
        **fields,
    )


def removed(tokens: list[int], block_tokens: int = 16, first: int = 0) -> BlockRemoved:
    """The same blocks are gone."""
    return BlockRemoved(block_names(tokens, block_tokens)[first:])


def block_names(tokens: list[int], block_tokens: int) -> list[int]:
    """Of all whole blocks: 64 bits each."""
    ends = range(block_tokens, len(tokens) + 1, block_tokens)
    return [hash(tuple(tokens[:end])) % 2**64 for end in ends]


def _plain(event: object) -> object:
    """As vLLM writes it: a map with its type, without what is None."""
    if isinstance(event, dict):
        return event
    fields = msgspec.to_builtins(event, builtin_types=(bytes,))
    return {key: value for key, value in fields.items() if value is not None or "parent" in key}
