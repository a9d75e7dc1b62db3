"""Health of one rail: when it may carry slices, when it is tried again.

The same machine as `native/transfer/rail.h`, which has the table of states: on the same history
both act alike. Times are nanoseconds of one clock that the caller keeps.
"""

import enum
import math
from typing import NamedTuple

MS = 1_000_000
NEVER = 2**63 - 1
DELAYS = tuple(delay * MS for delay in (100, 100, 200, 400, 500))
MAX_RETRIES = 6.0
LONG_PAUSE = 60_000 * MS
LONG_DELAY = 2_000 * MS
HALF_LIFE_NS = 10e9
SILENCE = 16 * MS
LONE_SILENCE = 60 * MS
CONNECT_TIMEOUT = 150 * MS


class RailState(enum.Enum):
    """Only a ready rail takes slices."""

    CONNECTING = "connecting"
    READY = "ready"
    PAUSED = "paused"
    CLOSED = "closed"


class RailEvent(enum.Enum):
    """What can happen to a rail."""

    TICK = "tick"
    CONNECTED = "connected"
    REFUSED = "refused"
    ERROR = "error"
    SILENCE = "silence"
    SUSPECT = "suspect"
    OUTLIER = "outlier"
    LINK_DOWN = "link_down"
    LINK_UP = "link_up"
    HOLD = "hold"
    RELEASE = "release"
    CLOSE = "close"


class RailActions(NamedTuple):
    """What the caller does, in this order."""

    close: bool = False
    connect: bool = False
    restart: bool = False
    announce: bool = False


NOTHING = RailActions()
PROBE = RailActions(close=True, connect=True)
FAILURES = {RailEvent.REFUSED, RailEvent.ERROR, RailEvent.LINK_DOWN, RailEvent.TICK}
SUSPICIONS = {RailEvent.SILENCE, RailEvent.SUSPECT}


class Rail:
    """The state machine of one rail; it starts while its caller connects."""

    def __init__(self, now: int, connect_timeout: int = CONNECT_TIMEOUT) -> None:
        """Start connecting.

        Args:
            now: time in ns.
            connect_timeout: how long a connection may take to be made, in ns.
        """
        self.state = RailState.CONNECTING
        self.reason = RailEvent.TICK
        self.next_tick = now + connect_timeout
        self.retries = 0.0
        self._connect_timeout = connect_timeout
        self._connecting = True
        self._held = False
        self._paused_at = 0
        self._counted_at = now

    def on(self, event: RailEvent, now: int, others_ready: bool = True) -> RailActions:
        """Take an event; `others_ready` says whether something else can carry the slices."""
        if self.state is RailState.CLOSED:
            return NOTHING
        if event is RailEvent.CLOSE:
            self.state = RailState.CLOSED
            self.next_tick = NEVER
            return RailActions(close=True, announce=True)
        if event is RailEvent.TICK and now < self.next_tick:
            return NOTHING
        if self.state is RailState.PAUSED:
            return self._on_held(event, now) if self._held else self._on_paused(event, now)
        ready = self.state is RailState.READY
        if event is RailEvent.CONNECTED and not ready:
            self._become_ready()
            return RailActions(announce=True)
        if event is RailEvent.OUTLIER:
            return RailActions(restart=ready)
        if event in FAILURES or (event in SUSPICIONS and ready and others_ready):
            return self._pause(event, now)
        if event is RailEvent.HOLD:
            self._held = True
            return self._pause(event, now)
        return NOTHING

    def _on_held(self, event: RailEvent, now: int) -> RailActions:
        if event is not RailEvent.RELEASE:
            return NOTHING
        self._held = False
        return self._probe(now)

    def _on_paused(self, event: RailEvent, now: int) -> RailActions:
        if event is RailEvent.HOLD:
            probing, self._connecting = self._connecting, False
            self._held = True
            self.reason = event
            self.next_tick = NEVER
            return RailActions(close=probing, announce=True)
        if event is RailEvent.LINK_UP:
            self._paused_at = now
            return self._probe(now)
        if event is RailEvent.TICK and not self._connecting:
            return self._probe(now)
        if not self._connecting:
            return NOTHING
        if event is RailEvent.CONNECTED:
            self._become_ready()
            return RailActions(restart=True, announce=True)
        if event in FAILURES or event is RailEvent.SILENCE:
            self._connecting = False
            self._schedule(now)
            return RailActions(close=True)
        return NOTHING

    def _become_ready(self) -> None:
        self.state = RailState.READY
        self._connecting = False
        self.next_tick = NEVER

    def _pause(self, reason: RailEvent, now: int) -> RailActions:
        self.state = RailState.PAUSED
        self.reason = reason
        self._connecting = False
        self._paused_at = now
        self._schedule(now)
        return RailActions(close=not self._held, announce=True)

    def _probe(self, now: int) -> RailActions:
        self._connecting = True
        self.next_tick = now + self._connect_timeout
        return PROBE

    def _schedule(self, now: int) -> None:
        if self._held:
            self.next_tick = NEVER
            return
        self.retries *= math.exp2(-float(now - self._counted_at) / HALF_LIFE_NS)
        self._counted_at = now
        long = now - self._paused_at >= LONG_PAUSE
        delay = LONG_DELAY if long else DELAYS[min(int(self.retries + 0.5), len(DELAYS) - 1)]
        self.next_tick = now + delay
        self.retries = min(self.retries + 1.0, MAX_RETRIES)


def is_silent(unacknowledged: int, since_ack: int, smoothed_round_trip: int) -> bool:
    """Whether the segments sent on a TCP connection get nowhere; times in ns."""
    if unacknowledged == 0:
        return False
    bound = max(SILENCE, 3 * smoothed_round_trip)
    return since_ack > (max(LONE_SILENCE, bound) if unacknowledged == 1 else bound)
