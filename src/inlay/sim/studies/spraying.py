"""Transfers over several links, some of which fail now and then: Inlay's choice beside others.

Links of 25 Gbit/s, 50 us away. So many of them are down, or at a twentieth of their rate, for 0.3
to 0.8 s, again and again, each at its own times; the same times for each choice. A link that is cut
is noticed by missing acknowledgements alone, one that is unplugged by the machine's port as well.

All choices have Inlay's rails, which give a link up and try it again; what differs is where slices
go. Round robin binds slices of 64 KiB in turn, static each transfer to one link.

Source: TENT (arXiv 2604.00368): slices of a link that failed go elsewhere within 50 ms. How long a
link that returned stays unused there was not published.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inlay.sim.rails import BIN_S, LinkState, PathChoice, Rails, Sprayed, could_move, spray
from inlay.sim.studies.found import Found

Fault = Literal["none", "slow", "cut", "unplugged"]

RATE = 25e9 / 8
UNTIL_S = 10.0
SMALL = 64 << 10
LARGE = 64 << 20
LOAD = 0.3
"""Of the sum of the links, so that those that are left can carry what is asked for."""
HEALED_MS = 50.0
_SLOW = 1 / 20
_USED = 0.5  # of its rate, over 10 ms, and a link is in use again
_WINDOW = round(0.010 / BIN_S)


def measure(*, choice: PathChoice, links: int, failing: int, fault: Fault) -> list[Found]:
    """`delivered` of what the links could carry, with as many transfers of 64 MiB all the time as
    there are links, and the seconds until links are used again; then milliseconds that transfers of
    64 KiB and of 64 MiB take that come at random, at `LOAD`.
    """
    rails = Rails(
        links=faults(links, failing, fault, np.random.default_rng(links)),
        choice=choice,
        link_events=fault == "unplugged",
    )
    busy = all_the_time(rails)
    found = [Found(name="delivered", value=delivered(rails, busy), limit=("sum of the links", 1.0))]
    if failing:
        again_s = used_again_s(rails, busy)
        found += [
            Found(name="used_again_s", value=float(np.median(again_s))),
            Found(name="used_again_worst_s", value=float(again_s.max())),
        ]
    for name, size in ("64kib", SMALL), ("64mib", LARGE):
        ms = 1e3 * at_random(rails, size)
        found += [
            Found(name=f"p50_{name}_ms", value=float(np.quantile(ms, 0.5, method="higher"))),
            Found(name=f"p99_{name}_ms", value=float(np.quantile(ms, 0.99, method="higher"))),
        ]
        if size == SMALL:
            down = fault in ("cut", "unplugged")
            found.append(
                Found(
                    name=f"slowest_{name}_ms",
                    value=float(ms.max()),
                    published=HEALED_MS if down else None,
                )
            )
    return found


def faults(
    links: int, failing: int, fault: Fault, rng: np.random.Generator
) -> list[list[LinkState]]:
    """Links, the first of which fail at drawn times until `UNTIL_S`."""
    found = []
    for link in range(links):
        states = [LinkState(since_s=0.0, bytes_per_s=RATE)]
        time_s = float(rng.uniform(0.3, 1.0))
        while link < failing and time_s < UNTIL_S:
            slow = fault == "slow"
            states.append(
                LinkState(since_s=time_s, bytes_per_s=RATE * _SLOW if slow else 0.0, up=slow)
            )
            time_s += float(rng.uniform(0.3, 0.8))
            states.append(LinkState(since_s=time_s, bytes_per_s=RATE))
            time_s += float(rng.uniform(0.7, 1.7))
        found.append(states)
    return found


def all_the_time(rails: Rails) -> Sprayed:
    """As many transfers of 64 MiB as there are links under way until the end."""
    at_once = len(rails.links)
    most = int(at_once * RATE * UNTIL_S / LARGE) + at_once
    sizes_N = np.full(most, LARGE, dtype=np.int64)
    return spray(rails, np.zeros(most), sizes_N, until_s=UNTIL_S, at_once=at_once)


def delivered(rails: Rails, sprayed: Sprayed) -> float:
    """Share of what the links could carry while they were up, at their rates of the time."""
    could = sum(could_move(states, UNTIL_S) for states in rails.links)
    return float(sprayed.moved_LB.sum()) / could


def used_again_s(rails: Rails, sprayed: Sprayed) -> NDArray[np.float64]:
    """Of each return of a link, the time until it carries half of its rate over 10 ms.

    Returns that the link's next fault, or the end, cuts short count with the time until then.
    """
    return np.array(
        [
            _used_again_s(sprayed.moved_LB[link], since.since_s, until_s)
            for link, states in enumerate(rails.links)
            for since, until_s in _returns(states)
        ]
    )


def _returns(states: Sequence[LinkState]) -> list[tuple[LinkState, float]]:
    """States in which a link is whole again, and their ends."""
    ends_s = [min(state.since_s, UNTIL_S) for state in states[1:]] + [UNTIL_S]
    return [
        (state, end_s)
        for state, end_s in zip(states, ends_s, strict=True)
        if 0.0 < state.since_s < UNTIL_S and state.bytes_per_s == RATE
    ]


def _used_again_s(moved_B: NDArray[np.float64], since_s: float, until_s: float) -> float:
    first = int(np.ceil(since_s / BIN_S))
    sums_B = np.convolve(moved_B[first : int(until_s / BIN_S)], np.ones(_WINDOW), mode="valid")
    used_B = np.flatnonzero(sums_B >= _USED * RATE * _WINDOW * BIN_S)
    return float(used_B[0] + _WINDOW) * BIN_S if len(used_B) else until_s - since_s


def at_random(rails: Rails, size_bytes: int) -> NDArray[np.float64]:
    """Seconds of each transfer that begins before the end; those under way then have its time."""
    rng = np.random.default_rng(size_bytes)
    gap_s = size_bytes / (LOAD * len(rails.links) * RATE)
    begun_s_N = np.cumsum(rng.exponential(gap_s, round(1.1 * UNTIL_S / gap_s)))
    begun_s_N = begun_s_N[begun_s_N < UNTIL_S]
    sizes_N = np.full(len(begun_s_N), size_bytes, dtype=np.int64)
    sprayed = spray(rails, begun_s_N, sizes_N, until_s=UNTIL_S + 5.0)
    return np.nan_to_num(sprayed.seconds_N, nan=UNTIL_S + 5.0)
