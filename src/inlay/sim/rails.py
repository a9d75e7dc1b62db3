"""Transfers over links that fail and slow down: the transfer engine's choice beside others.

Which link takes a slice, when a link is given up and when it is tried again is decided by the very
code of `inlay.transfer`; links, and what is asked of them, are simulated in `native/sim/rails.h`.

Shapes: `N` transfers, `L` links, `B` bins of time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ConfigError
from inlay.sim import _backend

PathChoice = Literal["engine", "round_robin", "static"]
BIN_S = 0.001


@dataclass(frozen=True, kw_only=True)
class LinkState:
    """How a link is from a time on.

    Attributes:
        since_s: seconds.
        bytes_per_s: at 0 what was sent stays where it is.
        up: whether connections over it can be made; nothing moves over one that is down.
    """

    since_s: float
    bytes_per_s: float
    up: bool = True


@dataclass(frozen=True, kw_only=True)
class Rails:
    """Links between two machines.

    Attributes:
        links: of each its states, the first of which is from 0 s on, in order of time.
        choice: `engine`; `round_robin` for slices of 64 KiB that are bound in turn when their
            transfer begins; `static` for one link for each transfer, in turn. All have the engine's
            rails: what was on a link that is given up goes over another.
        delay_s: one way.
        link_events: whether the machine is told when a link goes down and comes up. Otherwise it is
            noticed by acknowledgements that do not come, and by connections that are tried.
    """

    links: Sequence[Sequence[LinkState]]
    choice: PathChoice = "engine"
    delay_s: float = 50e-6
    link_events: bool = False

    def __post_init__(self) -> None:
        if not self.links or not all(self.links):
            raise ConfigError("links: there must be at least one, each with at least one state")
        if any(states[0].bytes_per_s <= 0 for states in self.links):
            raise ConfigError(
                "links: the first rate of each must be above 0, the engine is told it"
            )
        if not self.delay_s >= 0:
            raise ConfigError(f"delay_s: must not be below 0, got {self.delay_s:g}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Sprayed:
    """What came of transfers.

    Attributes:
        seconds_N: that each took, (N,); NaN for one that did not end within the run.
        begun_s_N: when each began, (N,); NaN for one that did not.
        moved_LB: bytes that completed in each `BIN_S`, by link, (L, B).
        repeated: slices that were posted again because their link was given up.
    """

    seconds_N: NDArray[np.float64]
    begun_s_N: NDArray[np.float64]
    moved_LB: NDArray[np.float64]
    repeated: int


def spray(
    rails: Rails,
    begun_s_N: NDArray[np.float64],
    size_bytes_N: NDArray[np.int64],
    *,
    until_s: float,
    at_once: int = 0,
) -> Sprayed:
    """Move transfers over links.

    Args:
        begun_s_N: when each begins, ascending, (N,).
        size_bytes_N: at least 1 each, (N,).
        until_s: when the run ends, in seconds.
        at_once: so many are always under way, the next one begins when one ends, whatever its time;
            0: each begins at its time.

    Raises:
        ArgumentError: arrays or states are not in order, or do not fit each other.

    Cost: about 0.3 us per slice; a slice has 64 KiB to 2 MiB. The GIL is released.
    """
    begun, done, moved, repeated = _backend.run_rails(
        choice=rails.choice,
        links=[
            [(_ns(state.since_s), state.bytes_per_s, state.up) for state in states]
            for states in rails.links
        ],
        believed=[states[0].bytes_per_s for states in rails.links],
        delay=_ns(rails.delay_s),
        link_events=rails.link_events,
        until=_ns(until_s),
        bin=_ns(BIN_S),
        at_once=at_once,
        begun=np.ascontiguousarray(np.round(begun_s_N * 1e9), dtype=np.int64),
        size_bytes=np.ascontiguousarray(size_bytes_N, dtype=np.int64),
    )
    begun_s_N = _seconds(begun)
    return Sprayed(
        seconds_N=_seconds(done) - begun_s_N,
        begun_s_N=begun_s_N,
        moved_LB=np.frombuffer(moved).reshape(len(rails.links), -1),
        repeated=repeated,
    )


def could_move(states: Sequence[LinkState], until_s: float) -> float:
    """Bytes that a link could carry until then."""
    ends = [state.since_s for state in states[1:]] + [math.inf]
    return sum(
        state.bytes_per_s * max(0.0, min(end, until_s) - state.since_s)
        for state, end in zip(states, ends, strict=True)
        if state.up
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _seconds(times: bytes) -> NDArray[np.float64]:
    ns = np.frombuffer(times, dtype=np.int64)
    return np.where(ns < 0, np.nan, ns * 1e-9)
