"""Traces made of traces: faster, longer, cut, merged, in blocks of another size.

Each function gives a new trace. Those that name blocks anew keep which prompts begin alike, as far
as whole blocks can say.
"""

from collections.abc import Sequence
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


def scale_rate(trace: Trace, factor: float) -> Trace:
    """The same requests, so many times as fast: order and bursts stay."""
    _check(factor)
    return replace(trace, arrival_s=trace.arrival_s / factor)


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
    return replace(chosen, arrival_s=chosen.arrival_s - start_s)


def merge(traces: Sequence[Trace]) -> Trace:
    """All requests of several traces, by arrival; of those at one time in the order of the traces.

    Nothing is shared between traces: blocks and sessions get new numbers. Groups of one name are
    one group.

    Raises:
        TraceError: there is none, their blocks have different sizes, or there are over 256 groups.
    """
    if not traces:
        raise TraceError("merge needs at least one trace")
    sizes = sorted({trace.block_tokens for trace in traces})
    if len(sizes) > 1:
        raise TraceError(f"the traces have blocks of {sizes} tokens: use with_block_tokens first")
    groups = list(dict.fromkeys(name for trace in traces for name in trace.groups))
    blocks, starts, sessions, members = [], [], [], []
    num_blocks = num_names = num_sessions = 0
    for trace in map(renumber, traces):
        blocks.append(trace.blocks + np.uint64(num_names))
        starts.append(trace.block_starts[:-1] + num_blocks)
        sessions.append(np.where(trace.session < 0, -1, trace.session + num_sessions))
        members.append(np.array([groups.index(name) for name in trace.groups])[trace.group])
        num_blocks += len(trace.blocks)
        num_names += int(trace.blocks.max(initial=0)) + 1
        num_sessions += int(trace.session.max(initial=-1)) + 1
    arrivals = np.concatenate([trace.arrival_s for trace in traces])
    order = np.argsort(arrivals, kind="stable")
    counts = np.concatenate([np.diff(trace.block_starts) for trace in traces])[order]
    return Trace(
        arrival_s=arrivals[order],
        input_tokens=np.concatenate([trace.input_tokens for trace in traces])[order],
        output_tokens=np.concatenate([trace.output_tokens for trace in traces])[order],
        block_starts=starts_of(counts),
        blocks=np.concatenate(blocks)[runs(np.concatenate(starts)[order], counts)],
        block_tokens=sizes[0],
        session=np.concatenate(sessions)[order],
        group=np.concatenate(members)[order],
        groups=tuple(groups),
    )


def renumber(trace: Trace) -> Trace:
    """The same trace, its blocks and sessions numbered from 0 on, in the order of their names.

    For names that are digests, which leave no room to name parts of a block. Parts of a trace
    that are renumbered one by one have nothing in common any more.
    """
    blocks = np.unique(trace.blocks, return_inverse=True)[1].astype(np.uint64)
    session = trace.session.copy()
    named = session >= 0
    session[named] = np.unique(session[named], return_inverse=True)[1]
    return replace(trace, blocks=blocks, session=session)


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
    if int(trace.blocks.max(initial=0)) >= 2**64 // parts:
        raise TraceError(f"names of blocks must be below 2^64 / {parts}: use renumber first")
    counts = blocks_of(input_tokens, block_tokens)
    old_counts = np.diff(trace.block_starts)
    new = runs(np.zeros_like(counts), counts)
    old = np.minimum(((new + 1) * few - 1) // many, np.repeat(old_counts - 1, counts))
    part = new - old * many // few
    names = trace.blocks[np.repeat(trace.block_starts[:-1], counts) + old]
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
