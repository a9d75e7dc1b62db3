"""Traces made of traces: what is kept, and what prompts share afterwards."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ArgumentError, TraceError
from inlay.sim.formats import read_chunks
from inlay.sim.trace import Trace, blocks_of, starts_of
from inlay.sim.transform import (
    cut,
    cut_parts,
    join,
    merge,
    merge_parts,
    scale_lengths,
    scale_rate,
    with_block_tokens,
)
from tests.support.tree import ROOT

SYNTHETIC = ROOT / "benchmarks" / "traces" / "mooncake_synthetic.jsonl.gz"


@st.composite
def traces(draw: st.DrawFn, block_tokens: int = 12) -> Trace:
    """Prompts that begin as another one does, up to a block, and go on on their own."""
    chains: list[list[int]] = [[]]
    fresh = 0
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        begin = draw(st.sampled_from(chains))
        begin = begin[: draw(st.integers(0, len(begin)))]
        own = draw(st.integers(1, 5))
        chain = [*begin, *range(fresh, fresh := fresh + own)]
        chains.append(chain[:-1])  # the last may be partial, and is nobody else's
        tokens = len(chain) * block_tokens - draw(st.integers(0, block_tokens - 1))
        rows.append((draw(st.integers(0, 50)) / 8, tokens, chain))
    rows.sort(key=lambda row: row[0])
    chosen = [row[2] for row in rows]
    return Trace(
        arrival_s=[row[0] for row in rows],
        input_tokens=np.array([row[1] for row in rows]),
        output_tokens=np.full(len(rows), 6),
        block_starts=starts_of(np.array([len(chain) for chain in chosen])),
        blocks=np.array([name for chain in chosen for name in chain]),
        block_tokens=block_tokens,
        session=draw(st.lists(st.integers(-1, 5), min_size=len(rows), max_size=len(rows))),
    )


def shared_blocks(trace: Trace) -> np.ndarray:
    """Leading blocks that each two prompts have in common."""
    chains = [trace.chain(number).tolist() for number in range(len(trace))]
    return np.array([[len({*one} & {*other}) for other in chains] for one in chains])


@given(traces(), st.floats(0.01, 100))
def test_rate(trace: Trace, factor: float) -> None:
    faster = scale_rate(trace, factor)
    np.testing.assert_allclose(faster.arrival_s * factor, trace.arrival_s)
    assert faster.blocks.tolist() == trace.blocks.tolist()


@given(traces(), st.integers(1, 40))
def test_block_sizes_keep_what_whole_blocks_say(trace: Trace, block_tokens: int) -> None:
    other = with_block_tokens(trace, block_tokens)
    assert other.input_tokens.tolist() == trace.input_tokens.tolist()
    before, after = shared_blocks(trace), shared_blocks(other)
    two = np.triu_indices(len(trace), 1)
    assert (after[two] == before[two] * trace.block_tokens // block_tokens).all()


@given(traces(), st.integers(1, 6))
def test_smaller_blocks_and_back(trace: Trace, parts: int) -> None:
    again = with_block_tokens(with_block_tokens(trace, 12 // (12 // parts)), 12)
    assert (shared_blocks(again) == shared_blocks(trace)).all()


@given(traces(), st.sampled_from([0.25, 1 / 3, 0.8, 1, 1.5, 2, 7 / 3, 10]))
def test_lengths_keep_shared_parts(trace: Trace, factor: float) -> None:
    longer = scale_lengths(trace, factor)
    wanted = np.maximum(1, np.rint(trace.input_tokens * factor))
    assert (longer.input_tokens == wanted).all()
    assert (longer.output_tokens == max(1, np.rint(6 * factor))).all()
    two = np.triu_indices(len(trace), 1)
    wanted = shared_blocks(trace)[two] * factor + 1e-9
    assert (shared_blocks(longer)[two] == wanted.astype(int)).all()


@given(traces(), st.floats(0, 5), st.floats(0.01, 5))
def test_cut(trace: Trace, start_s: float, length_s: float) -> None:
    end_s = start_s + length_s
    part = cut(trace, start_s, end_s)
    kept = [t - start_s for t in trace.arrival_s if start_s <= t < end_s]
    np.testing.assert_allclose(part.arrival_s, kept)


@given(st.lists(traces(), min_size=1, max_size=4))
def test_merged_traces_share_nothing(given_traces: list[Trace]) -> None:
    merged = merge(given_traces)
    rows = [
        (float(trace.arrival_s[n]), place, n)
        for place, trace in enumerate(given_traces)
        for n in range(len(trace))
    ]
    rows.sort()
    names: dict[int, tuple[int, int]] = {}
    sessions: dict[int, tuple[int, int]] = {}
    for number, (time_s, place, n) in enumerate(rows):
        trace = given_traces[place]
        assert merged.arrival_s[number] == time_s
        assert merged.input_tokens[number] == trace.input_tokens[n]
        for new, old in zip(merged.chain(number).tolist(), trace.chain(n).tolist(), strict=True):
            assert names.setdefault(new, (place, old)) == (place, old)
        session = int(merged.session[number])
        assert (session == -1) == (trace.session[n] == -1)
        if session >= 0:
            own = (place, int(trace.session[n]))
            assert sessions.setdefault(session, own) == own
    assert len(names) == len(set(names.values()))


def in_parts(trace: Trace, size: int) -> list[Trace]:
    """Consecutive parts of so many requests."""
    return [
        trace.select(np.arange(first, min(first + size, len(trace))))
        for first in range(0, len(trace), size)
    ]


def assert_same(one: Trace, other: Trace) -> None:
    for name in ("arrival_s", "input_tokens", "output_tokens", "block_starts", "blocks", "session"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    names = [[trace.groups[group] for group in trace.group] for trace in (one, other)]
    assert names[0] == names[1]


@given(traces(), st.integers(1, 4), st.floats(0, 5), st.floats(0.01, 5))
def test_parts_are_changed_as_the_whole(
    trace: Trace, size: int, start_s: float, length_s: float
) -> None:
    parts = in_parts(trace, size)
    assert_same(join(parts), trace)
    for change in (
        lambda one: scale_lengths(one, 7 / 3),
        lambda one: with_block_tokens(one, 5),
        lambda one: scale_rate(one, 1.3),
    ):
        assert_same(join([change(part) for part in parts]), change(trace))
    kept = list(cut_parts(parts, start_s, start_s + length_s))
    whole = cut(trace, start_s, start_s + length_s)
    if kept:
        assert_same(join(kept), whole)
    else:
        assert not len(whole)


@given(st.lists(st.tuples(traces(), st.integers(1, 3)), min_size=1, max_size=4))
def test_merged_parts_are_the_merged_whole(given_traces: list[tuple[Trace, int]]) -> None:
    wholes = [trace for trace, _ in given_traces]
    merged = list(merge_parts([in_parts(trace, size) for trace, size in given_traces]))
    assert_same(join(merged), merge(wholes))


def test_endless_traces_are_merged_as_they_come() -> None:
    asked = [0, 0]

    def endless(place: int, each_s: float):
        while True:
            time_s = asked[place] * each_s
            asked[place] += 1
            yield single(arrival_s=[time_s])

    merged = merge_parts([endless(0, 1.0), endless(1, 0.25)])
    times: list[float] = []
    while len(times) < 50:
        times += next(merged).arrival_s.tolist()
    assert times == sorted(times) and times[:6] == [0, 0, 0.25, 0.5, 0.75, 1.0]
    assert max(asked) < 60, "no more than is needed is asked for"


def test_what_comes_behind_a_cut_is_not_asked_for() -> None:
    def parts():
        yield single(arrival_s=[1.0])
        yield single(arrival_s=[7.0])
        raise AssertionError("asked for")

    assert [len(part) for part in cut_parts(parts(), 0, 5)] == [1]


def test_groups_of_one_name_are_merged() -> None:
    one = single(groups=("chat", "code"), group=[1])
    other = single(groups=("code", "batch"), group=[1])
    merged = merge([one, other, one])
    assert merged.groups == ("chat", "code", "batch")
    assert [merged.groups[g] for g in merged.group] == ["code", "batch", "code"]


def test_mooncakes_trace_in_pages_of_an_engine() -> None:
    trace = next(read_chunks(SYNTHETIC, 300))
    pages = with_block_tokens(trace, 16)
    assert (np.diff(pages.block_starts) == blocks_of(trace.input_tokens, 16)).all()
    assert pages.reusable_share() == pytest.approx(trace.reusable_share(), abs=0.01)
    assert with_block_tokens(pages, 512).reusable_share() == trace.reusable_share()


def test_digests_leave_room_for_names() -> None:
    digests = np.random.default_rng(1).integers(0, 2**64 - 1, 1000, np.uint64, endpoint=True)
    trace = single(blocks=[*digests[:999], 2**64 - 1], input_tokens=[1000 * 512], session=[2**62])
    again = single(blocks=trace.blocks[:500], input_tokens=[500 * 512])
    for change in (lambda one: with_block_tokens(one, 16), lambda one: scale_lengths(one, 3)):
        changed = change(trace)
        assert len(np.unique(changed.blocks)) == len(changed.blocks), "no two became one"
        assert change(again).blocks.tolist() == changed.blocks[: len(changed.blocks) // 2].tolist()
    merged = merge([trace, trace, again])
    assert len(np.unique(merged.blocks)) == len(merged.blocks) == 2500
    assert len({*merged.session.tolist()}) == 3 and merged.session.max() >= 2**60


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda trace: scale_rate(trace, 0), "factor must be above 0 and finite, got 0"),
        (lambda trace: scale_rate(trace, float("nan")), "finite, got nan"),
        (lambda trace: scale_lengths(trace, float("inf")), "finite, got inf"),
        (lambda trace: scale_lengths(trace, 1e-5), "1/1024 or more, got 1e-05"),
        (
            lambda trace: scale_lengths(trace, 1e8),
            "100000000.0 times 100 tokens is above 2147483647",
        ),
        (lambda trace: with_block_tokens(trace, 0), "at least 1, got 0"),
        (lambda trace: cut(trace, 5, 5), "got 5 to 5"),
        (lambda trace: cut(trace, -1, 5), "got -1 to 5"),
        (lambda trace: merge([]), "at least one trace"),
        (lambda trace: join([]), "at least one part"),
        (lambda trace: join([single(arrival_s=[1.0]), trace]), "sort the requests"),
        (lambda trace: merge([trace, with_block_tokens(trace, 16)]), r"blocks of \[16, 512\]"),
    ],
)
def test_wrong_arguments(wrong: Any, words: str) -> None:
    with pytest.raises((ArgumentError, TraceError), match=words):
        wrong(single())


def single(**changed: Any) -> Trace:
    columns = {
        "arrival_s": [0.0], "input_tokens": [100], "output_tokens": [5],
        "block_starts": [0, 1], "blocks": [3],
    }  # fmt: skip
    columns |= changed
    columns["block_starts"] = [0, len(columns["blocks"])]
    return Trace(**columns)
