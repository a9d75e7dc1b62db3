"""Requests with the times at which they arrive, as columns.

A trace knows lengths and which blocks prompts have in common, no text and no tokens. Files are read
by `inlay.sim.formats`, traces are drawn by `inlay.sim.generators` and changed by
`inlay.sim.transform`; all of them make a `Trace`, which checks itself.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inlay.core.errors import TraceError

BLOCK_TOKENS = 512
"""Tokens of a block where nothing else is said: those of Mooncake's traces."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """`R` requests in the order of their arrival, whose prompts have `B` blocks together.

    What is given as a column may be a list or an array of integers, or of numbers for times; an
    array of the right dtype is not copied. The columns cannot be written to.

    Attributes:
        arrival_s: float64 (R,), seconds from the start of the trace, at least 0 and sorted.
        input_tokens: int32 (R,), tokens of each prompt, at least 1.
        output_tokens: int32 (R,), tokens of each answer, at least 1.
        block_starts: int64 (R + 1,), where each request's blocks begin in `blocks`.
        blocks: uint64 (B,), names of the prompts' blocks. A name stands for a block and all before
            it; the last block of a prompt may be partial, and has a name, too.
        block_tokens: tokens of a block.
        session: int64 (R,), the requests of one follow each other; -1: of none, which is also what
            an empty column says.
        group: uint8 (R,), index into `groups`; all 0 if the column is empty.
        groups: names of tenants or classes, at most 256.

    Raises:
        TraceError: a column has a wrong shape or value; `request` is the first one that is wrong.

    Cost: sorting the `B` names, about 0.1 us for each.
    Source: what is known of a request follows Mooncake's traces (FAST'25, appendix).
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    block_starts: NDArray[np.int64]
    blocks: NDArray[np.uint64]
    block_tokens: int = BLOCK_TOKENS
    session: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    group: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    groups: tuple[str, ...] = ("default",)

    def __post_init__(self) -> None:
        requests = len(self.arrival_s)
        if not len(self.session):
            object.__setattr__(self, "session", np.full(requests, -1))
        if not len(self.group):
            object.__setattr__(self, "group", np.zeros(requests, np.uint8))
        for name, dtype, rows in (
            ("arrival_s", np.float64, requests),
            ("input_tokens", np.int32, requests),
            ("output_tokens", np.int32, requests),
            ("block_starts", np.int64, requests + 1),
            ("blocks", np.uint64, None),
            ("session", np.int64, requests),
            ("group", np.uint8, requests),
        ):
            object.__setattr__(self, name, _column(name, getattr(self, name), dtype, rows))
        self._check_times()
        self._check_lengths()
        self._check_names()
        self._check_chains()

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """From the start to the last arrival."""
        return float(self.arrival_s[-1]) if len(self) else 0.0

    def chain(self, request: int) -> NDArray[np.uint64]:
        """Names of the blocks of one request's prompt, the first one first."""
        return self.blocks[self.block_starts[request] : self.block_starts[request + 1]]

    def select(self, requests: ArrayLike) -> Self:
        """The trace of some requests, by their numbers, in this order."""
        chosen = np.asarray(requests, np.int64)
        counts = np.diff(self.block_starts)[chosen]
        starts = starts_of(counts)
        return self._with(
            arrival_s=self.arrival_s[chosen],
            input_tokens=self.input_tokens[chosen],
            output_tokens=self.output_tokens[chosen],
            block_starts=starts,
            blocks=self.blocks[runs(self.block_starts[chosen], counts)],
            session=self.session[chosen],
            group=self.group[chosen],
        )

    def at_times(self, arrival_s: NDArray[np.float64]) -> Self:
        """The same requests in the same order at other times, (R,)."""
        return self._with(arrival_s=_column("arrival_s", arrival_s, np.float64, len(self)))

    def _with(self, **columns: NDArray[Any]) -> Self:
        """Of requests that it has: what was found of each of them before is not looked at again."""
        made = copy(self)
        for name, column in columns.items():
            column.flags.writeable = False
            object.__setattr__(made, name, column)
        made._check_times()
        return made

    def reusable_share(self) -> float:
        """Of all prompts' blocks, those that an earlier request had: 0 to 1.

        It is the hit ratio of a cache that forgets nothing, counted in blocks.
        """
        blocks = len(self.blocks)
        return (blocks - _num_different(self.blocks)) / blocks if blocks else 0.0

    def _check_times(self) -> None:
        times = self.arrival_s
        _refuse(
            ~np.isfinite(times) | (times < 0),
            lambda i: f"arrives at {times[i]} s; times are seconds from the start, 0 or later",
        )
        _refuse(
            np.diff(times, prepend=0) < 0,
            lambda i: (
                f"arrives at {times[i]} s, but the one before at {times[i - 1]} s: "
                "sort the requests by arrival"
            ),
        )

    def _check_lengths(self) -> None:
        if self.block_tokens < 1:
            raise TraceError(f"block_tokens must be at least 1, got {self.block_tokens}")
        for name, tokens in (("input", self.input_tokens), ("output", self.output_tokens)):
            if (tokens < 1).any():
                request = int(np.argmax(tokens < 1))
                least = f"{name}_tokens must be at least 1, got {tokens[request]}"
                raise TraceError(least, request)
        counts = np.diff(self.block_starts)
        wanted = blocks_of(self.input_tokens, self.block_tokens)
        _refuse(
            counts != wanted,
            lambda i: (
                f"has names of {counts[i]} blocks, but {self.input_tokens[i]} input tokens "
                f"are {wanted[i]} blocks of {self.block_tokens}"
            ),
        )
        if self.block_starts[0] != 0 or self.block_starts[-1] != len(self.blocks):
            raise TraceError(
                f"block_starts must go from 0 to the {len(self.blocks)} blocks, not from "
                f"{self.block_starts[0]} to {self.block_starts[-1]}"
            )

    def _check_names(self) -> None:
        if not 1 <= len(self.groups) <= 256:
            raise TraceError(f"groups must have 1 to 256 names, got {len(self.groups)}")
        _refuse(self.session < -1, lambda i: f"session must be -1 or more, got {self.session[i]}")
        _refuse(
            self.group >= len(self.groups),
            lambda i: f"group {self.group[i]} is none of the {len(self.groups)} groups",
        )

    def _check_chains(self) -> None:
        """A name stands for all before it, so one other block comes before it, always the same."""
        if not len(self.blocks):
            return
        before = np.roll(self.blocks, 1)
        first = np.zeros(len(self.blocks), bool)
        first[self.block_starts[:-1]] = True
        before[first] = np.uint64(2**64 - 1)
        # As many different pairs as names. Pairs of numbers below 2^31 are as different as what
        # stands for them here, since the golden ratio is far from fractions; those of digests fall
        # together as seldom as digests do.
        pairs = self.blocks + (before + np.uint64(1)) * _GOLDEN
        if _num_different(pairs) == _num_different(self.blocks):
            return
        before[first] = 0
        order = np.argsort(self.blocks, kind="stable")
        ordered, leads = self.blocks[order], first[order]
        same = ordered[1:] == ordered[:-1]
        other = (before[order][1:] != before[order][:-1]) | (leads[1:] != leads[:-1])
        wrong = order[1:][same & other]
        if not len(wrong):
            return
        place = int(wrong.min())
        earlier = int(np.flatnonzero(self.blocks == self.blocks[place])[0])
        here, there = np.searchsorted(self.block_starts, (place, earlier), "right") - 1

        def follows(at: int) -> str:
            return "begins the prompt" if first[at] else f"follows block {self.blocks[at - 1]}"

        raise TraceError(
            f"block {self.blocks[place]} {follows(place)}, but {follows(earlier)} in request "
            f"{there}: a name stands for a block and all before it",
            int(here),
        )


def _num_different(numbers: NDArray[np.uint64]) -> int:
    ordered = np.sort(numbers)  # several times as quick as np.unique
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(len(numbers))


def out_of_order(time_s: float, before_s: float) -> str:
    """What is wrong with a request that arrives before the one ahead of it."""
    return (
        f"arrives at {time_s} s, but the one before at {before_s} s: sort the requests by arrival"
    )


def blocks_of(tokens: NDArray[Any], block_tokens: int) -> NDArray[np.int64]:
    """Blocks that so many tokens take, the last one partial or not."""
    return -(-tokens.astype(np.int64) // block_tokens)


def starts_of(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Where each of these runs begins if they lie one behind the other, and where the last ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def runs(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """`first, first + 1, ...` for each of these runs, one behind the other."""
    starts = starts_of(counts)
    return np.repeat(firsts - starts[:-1], counts) + np.arange(starts[-1])


def _column(name: str, values: Any, dtype: type[np.generic], rows: int | None) -> NDArray[Any]:
    given = np.asarray(values)
    if given.ndim != 1 or rows is not None and len(given) != rows:
        wanted = "one axis" if rows is None else f"the shape ({rows},)"
        raise TraceError(f"{name} must have {wanted}, but has {given.shape}")
    if given.dtype != dtype and len(given):
        _refuse_loss(name, given, np.dtype(dtype))
    column = given.astype(dtype, copy=False).view()
    column.flags.writeable = False
    return column


def _refuse_loss(name: str, given: NDArray[Any], dtype: np.dtype[Any]) -> None:
    if given.dtype.kind not in ("iuf" if dtype.kind == "f" else "iu"):
        raise TraceError(f"{name} must be of {dtype}, got {given.dtype}")
    if dtype.kind == "f":
        return
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    wrong = given[(given < low) | (given > high)]
    if len(wrong):
        raise TraceError(f"{name} must be {low} to {high}, got {wrong[0]}")


def _refuse(wrong: NDArray[np.bool_], reason: Callable[[int], str]) -> None:
    if wrong.any():
        request = int(np.argmax(wrong))
        raise TraceError(reason(request), request)
