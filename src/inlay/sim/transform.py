"""Traces made of traces: faster, longer, cut, merged, in blocks of another size.

Each function gives a new trace. Those that name blocks anew keep which prompts begin alike, as far
as whole blocks can say, and give a name the same new one wherever it is found: so a trace may be
changed part by part. Where a part is not enough to know, there is a form for parts (`cut_parts`,
`merge_parts`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ArgumentError, TraceError
from inlay.sim.trace import Trace, blocks_of, runs, starts_of

_MAX_DENOMINATOR = 1024
"""Of a factor of lengths: blocks are mapped to blocks by whole numbers."""

_MAX_TOKENS = 2**31 - 1
"""Of a prompt or an answer."""
_MIX = 0x9E3779B97F4A7C15


def scale_rate(trace: Trace, factor: float) -> Trace:
    """The same requests, so many times as fast: order and bursts stay."""
    _check(factor)
    return trace.at_times(trace.arrival_s / factor)


def scale_lengths(trace: Trace, factor: float) -> Trace:
    """Prompts and answers so many times as long, rounded, at least 1 token.

    Prompts share as much of their length as before, as far as whole blocks say it: what is one
    block becomes `factor` blocks, or `1 / factor` blocks become one, which is shared if all are.
    `factor` is taken as the nearest fraction with a denominator of at most 1,024.
    """
    _check(factor)
    ratio = Fraction(factor).limit_denominator(_MAX_DENOMINATOR)
    if not ratio:
        raise ArgumentError(
            f"a factor of lengths must be 1/{_MAX_DENOMINATOR} or more, got {factor}"
        )
    lengths = []
    for tokens in (trace.input_tokens, trace.output_tokens):
        scaled = np.maximum(1, np.rint(tokens * float(ratio)))
        if scaled.max(initial=0) > _MAX_TOKENS:
            raise ArgumentError(f"{factor} times {tokens.max()} tokens is above {_MAX_TOKENS}")
        lengths.append(scaled.astype(np.int64))
    return _renamed(trace, ratio, trace.block_tokens, *lengths)


def with_block_tokens(trace: Trace, block_tokens: int) -> Trace:
    """The same requests in blocks of so many tokens.

    Smaller blocks know no more of what prompts share than larger ones did: a page of 16 tokens is
    shared where the 512 around it are.
    """
    if block_tokens < 1:
        raise ArgumentError(f"block_tokens must be at least 1, got {block_tokens}")
    ratio = Fraction(trace.block_tokens, block_tokens)
    return _renamed(trace, ratio, block_tokens, trace.input_tokens, trace.output_tokens)


def cut(trace: Trace, start_s: float, end_s: float) -> Trace:
    """The requests that arrive from `start_s` on and before `end_s`; their time starts at 0."""
    if not 0 <= start_s < end_s:
        raise ArgumentError(f"a cut must go from 0 s or more to more, got {start_s} to {end_s}")
    first, end = np.searchsorted(trace.arrival_s, (start_s, end_s))
    chosen = trace.select(np.arange(first, end))
    return chosen.at_times(chosen.arrival_s - start_s)


def cut_parts(parts: Iterable[Trace], start_s: float, end_s: float) -> Iterator[Trace]:
    """`cut` of a trace in consecutive parts; none is asked for that begins at `end_s` or later."""
    for part in parts:
        chosen = cut(part, start_s, end_s)
        if len(chosen):
            yield chosen
        if part.duration_s >= end_s:
            return


def head(parts: Iterable[Trace], requests: int) -> Iterator[Trace]:
    """The first so many requests of a trace in consecutive parts, which may be endless."""
    left = requests
    for part in parts:
        yield part if len(part) <= left else part.select(np.arange(left))
        left -= len(part)
        if left <= 0:
            return


def join(parts: Sequence[Trace]) -> Trace:
    """The trace that consecutive parts are, at least one. Groups of one name are one group.

    Raises:
        TraceError: there is none, their blocks have different sizes, one begins before the end of
            the one before, or there are over 256 groups.
    """
    if not parts:
        raise TraceError("join needs at least one part")
    _same_block_tokens(parts)
    return _joined(parts)


def merge(traces: Sequence[Trace]) -> Trace:
    """All requests of several traces, by arrival; of those at one time in the order of the traces.

    Nothing is shared between traces: blocks and sessions get new names. Groups of one name are one
    group.

    Raises:
        TraceError: there is none, their blocks have different sizes, or there are over 256 groups.
    """
    return join(list(merge_parts([[trace] for trace in traces])))


def merge_parts(traces: Sequence[Iterable[Trace]]) -> Iterator[Trace]:
    """`merge` of traces in consecutive parts, which may be endless.

    Memory holds about a part of each. `k` of the traces' `i`-th becomes `k * len(traces) + i`, of
    blocks and of sessions.

    Raises:
        TraceError: as `merge`.
    """
    if not traces:
        raise TraceError("merge needs at least one trace")
    sources = [_one_of(parts, place, len(traces)) for place, parts in enumerate(traces)]
    # Of each trace what was read and not passed on; None where there is nothing more.
    ahead = [next(source, None) for source in sources]
    _same_block_tokens([part for part in ahead if part is not None])
    while lasts := [part.duration_s for part in ahead if part is not None]:
        until_s = min(lasts)
        passed = []
        for place, source in enumerate(sources):
            part = ahead[place]
            # Behind what arrives now, something else may arrive now.
            while part is not None and part.duration_s == until_s:
                more = next(source, None)
                if more is None:
                    break
                part = join([part, more])
            if part is None:
                continue
            count = int(np.searchsorted(part.arrival_s, until_s, side="right"))
            passed.append(part.select(np.arange(count)))
            left = part.select(np.arange(count, len(part)))
            ahead[place] = left if len(left) else None
        yield by_arrival(passed)


def by_arrival(traces: Sequence[Trace]) -> Trace:
    """All requests of at least one trace, by arrival, with the names that they have."""
    arrivals = np.concatenate([trace.arrival_s for trace in traces])
    return _joined(traces, np.argsort(arrivals, kind="stable"))


def _one_of(parts: Iterable[Trace], place: int, many: int) -> Iterator[Trace]:
    """Parts that have requests, with names and sessions of no other one of so many traces."""
    for part in parts:
        if not len(part):
            continue
        names = _below(part.blocks, 2**64 // many) * np.uint64(many) + np.uint64(place)
        session = part.session.copy()
        named = session >= 0
        kept = _below(session[named].astype(np.uint64), 2**63 // many)
        session[named] = kept.astype(np.int64) * many + place
        yield replace(part, blocks=names, session=session)


def _joined(parts: Sequence[Trace], order: NDArray[np.int64] | None = None) -> Trace:
    """The requests of some traces, one behind the other or in another order."""
    groups = list(dict.fromkeys(name for part in parts for name in part.groups))
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("arrival_s", "input_tokens", "output_tokens", "blocks", "session")
    }
    columns["group"] = np.concatenate(
        [np.array([groups.index(name) for name in part.groups])[part.group] for part in parts]
    )
    counts = np.concatenate([np.diff(part.block_starts) for part in parts])
    if order is not None:
        firsts, counts = starts_of(counts)[:-1][order], counts[order]
        columns = {
            name: column[runs(firsts, counts) if name == "blocks" else order]
            for name, column in columns.items()
        }
    return Trace(
        **columns,
        block_starts=starts_of(counts),
        block_tokens=parts[0].block_tokens,
        groups=tuple(groups),
    )


def _same_block_tokens(traces: Sequence[Trace]) -> None:
    sizes = sorted({trace.block_tokens for trace in traces})
    if len(sizes) > 1:
        raise TraceError(f"the traces have blocks of {sizes} tokens: use with_block_tokens first")


def _below(names: NDArray[np.uint64], limit: int) -> NDArray[np.uint64]:
    """Each name as one below `limit`: numbers that are below it as they are, digests mixed.

    Two of `n` digests become one with a probability of `n^2 / limit`, as with digests that short.
    """
    large = names >= np.uint64(limit) if limit < 2**64 else np.zeros(len(names), bool)
    if not large.any():
        return names
    kept = names.copy()
    mixed = names[large] * np.uint64(_MIX)
    kept[large] = (mixed ^ mixed >> np.uint64(32)) % np.uint64(limit)
    return kept


def _renamed(
    trace: Trace,
    ratio: Fraction,
    block_tokens: int,
    input_tokens: NDArray[Any],
    output_tokens: NDArray[Any],
) -> Trace:
    """A trace in which a block becomes `ratio` blocks.

    A new block is named after the old one in which it ends, and its place among those that end
    there: what the old one stands for includes all that the new one does.
    """
    many, few = ratio.numerator, ratio.denominator
    parts = -(-many // few) + 1
    counts = blocks_of(input_tokens, block_tokens)
    old_counts = np.diff(trace.block_starts)
    new = runs(np.zeros_like(counts), counts)
    old = np.minimum(((new + 1) * few - 1) // many, np.repeat(old_counts - 1, counts))
    part = new - old * many // few
    blocks = _below(trace.blocks, 2**64 // parts)
    names = blocks[np.repeat(trace.block_starts[:-1], counts) + old]
    return replace(
        trace,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        block_starts=starts_of(counts),
        blocks=names * np.uint64(parts) + part.astype(np.uint64),
        block_tokens=block_tokens,
    )


def _check(factor: float | Fraction) -> None:
    if not 0 < factor < inf:
        raise ArgumentError(f"a factor must be above 0 and finite, got {factor}")
