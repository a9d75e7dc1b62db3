"""Subscribes to an engine's KV events, and asks again for those that were missed.

Events have numbers. Where one is missing, the engine is asked to say again what it still has from
there on; where it has not kept that, or has nobody who says it, what was known of its blocks holds
no more. A number that was had already means that the engine was started again.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import zmq

from inlay.connect.foreign.kv_events import Event, read_events
from inlay.core.errors import ConfigError, DataError
from inlay.core.message_socket import MessageSocket

log = logging.getLogger(__name__)

_END = -1
_SEQUENCE_BYTES = 8
_SILENCE_S = 3.0
_MAX_BEHIND = 200_000  # messages that wait for a replay


@dataclass(frozen=True, kw_only=True)
class EventSource:
    """Where an engine publishes.

    Attributes:
        events: of its PUB socket; one with a `*` is bound here.
        replay: of its ROUTER socket; None: it has none.
    """

    events: str
    replay: str | None = None


class Listener(Protocol):
    """Who is told of an engine's blocks."""

    def apply(self, events: list[Event]) -> None:
        """This happened, in order."""
        ...

    def lost(self, *, forget: bool) -> None:
        """Nothing is known any more; `forget`: it is another run of the engine."""
        ...


class EventFeed:
    """See the module. Runs on the event loop that makes it.

    Args:
        listener: is told what happened.
        changed: called after it was.
        silence_s: after so long without a word the engine is asked again, or given up.

    Attributes:
        gaps: how often events were missed for good.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        source: EventSource,
        listener: Listener,
        changed: Callable[[], None],
        *,
        silence_s: float = _SILENCE_S,
    ) -> None:
        self.gaps = 0
        self._silence_s = silence_s
        self._context = context
        self._source = source
        self._listener = listener
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._next: int | None = None  # number of the next message
        self._behind: list[tuple[int, bytes]] | None = None  # that came during a replay
        self._replay: MessageSocket | None = None
        self._said = 0  # messages of this replay
        # What replays said, by number, until a later message comes: live ones may come behind them.
        self._said_again_of: dict[int, bytes] = {}
        self._torn = False  # one was missing within it: its queue was full
        self._late: asyncio.TimerHandle | None = None
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.subscribe(b"")
            socket.bind(source.events) if "*" in source.events else socket.connect(source.events)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ConfigError(
                f"kv_events is {source.events}, which cannot be used ({error}): write the address "
                "of the engine's publisher"
            ) from None
        self._events = MessageSocket(socket, self._received)
        if source.replay is not None:
            self._ask(0)

    def close(self) -> None:
        """Leave."""
        self._end_replay()
        self._events.close()

    # What the engine says

    def _received(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != _SEQUENCE_BYTES:
            log.warning("a message of %d frames is no KV events", len(frames))
            return
        number = int.from_bytes(frames[1], "big", signed=True)
        if self._behind is not None:
            self._behind.append((number, frames[2]))
            if len(self._behind) > _MAX_BEHIND:
                self._give_up("it takes too long")
            return
        self._take(number, frames[2])
        self._changed()

    def _take(self, number: int, payload: bytes) -> None:
        """One message, live or out of those that waited."""
        wanted = self._next
        if wanted is not None and number < wanted and self._said_again_of.get(number) == payload:
            return
        self._said_again_of.clear()
        if wanted is not None and number < wanted:
            log.info("KV events begin again: the engine was started again")
            self._listener.lost(forget=True)
            self._next = None
            if self._source.replay is not None:
                self._ask(0)
                assert self._behind is not None
                self._behind.append((number, payload))
                return
        elif wanted is not None and number > wanted:
            log.warning("KV events %d to %d are missing", wanted, number - 1)
            if self._source.replay is not None:
                self._ask(wanted)
                assert self._behind is not None
                self._behind.append((number, payload))
                return
            self._gap()
        self._apply(number, payload)

    def _apply(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        try:
            events = read_events(payload)
        except DataError as error:
            log.warning("%s", error)
            self._gap()
            return
        self._listener.apply(events)

    def _gap(self) -> None:
        self.gaps += 1
        self._listener.lost(forget=False)

    # What it says again

    def _ask(self, number: int) -> None:
        """Ask for all messages from a number on; those that come meanwhile wait."""
        assert self._source.replay is not None
        self._end_replay()
        self._behind = self._behind or []
        self._said, self._torn = 0, False
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, 0)
        try:
            socket.connect(self._source.replay)
            socket.send_multipart([b"", number.to_bytes(_SEQUENCE_BYTES, "big")])
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ConfigError(
                f"kv_replay is {self._source.replay}, which cannot be used ({error}): write the "
                "address of the engine's replay socket"
            ) from None
        self._replay = MessageSocket(socket, self._said_again)
        self._wait()

    def _wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self._loop.call_later(self._silence_s, self._silent)

    def _silent(self) -> None:
        """A ROUTER whose queue is full drops what it sends, the end of a replay, too."""
        if self._said:
            self._ask(self._next or 0)
        else:
            self._give_up("it says nothing")

    def _said_again(self, frames: list[bytes]) -> None:
        if len(frames) < 3:
            return
        number = int.from_bytes(frames[-2], "big", signed=True)
        if number == _END and self._torn:
            self._ask(self._next or 0)
            return
        if number == _END:
            self._end_replay()
            self._catch_up()
            return
        self._wait()
        wanted = self._next or 0
        if number < wanted or self._torn:
            return
        if number > wanted and self._said:
            self._torn = True
            return
        if number > wanted:
            log.warning("KV events %d to %d are gone for good", wanted, number - 1)
            self._gap()
        self._said += 1
        self._said_again_of[number] = frames[-1]
        self._apply(number, frames[-1])

    def _catch_up(self) -> None:
        """Take what came during a replay."""
        behind, self._behind = self._behind or [], None
        for index, (number, payload) in enumerate(behind):
            if self._next is not None and number < self._next:
                continue  # it was in the replay, too
            if self._next is not None and number > self._next:
                if self._said:  # what is missing may have been said after this replay began
                    self._ask(self._next)
                    self._behind = behind[index:]
                    return
                self._gap()  # the replay did not have it
            self._said_again_of.clear()
            self._apply(number, payload)
        self._changed()

    def _give_up(self, why: str) -> None:
        log.warning("no KV events from %s: %s", self._source.replay, why)
        self._end_replay()
        if self._next is not None:
            self._gap()
            self._next = None
        self._catch_up()

    def _end_replay(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self._replay is not None:
            self._replay.close()
            self._replay = None
