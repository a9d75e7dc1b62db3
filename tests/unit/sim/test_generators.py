"""Drawn traces have the statistics that their workloads state."""

import tracemalloc
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inlay.core.errors import ConfigError
from inlay.sim.generators import WORKLOADS, LogNormal, Mixture, Sessions, SharedTexts
from inlay.sim.known_names import KnownNames
from inlay.sim.trace import Trace
from inlay.sim.transform import join

PLAIN = Sessions(
    name="plain",
    rate=10.0,
    shared=(SharedTexts(count=20, tokens=LogNormal(1024), exponent=1.0),),
    opening=LogNormal(700, 0.5),
    turns=4,
    added=LogNormal(100, 0.5),
    output=LogNormal(200, 0.5),
    pause_s=LogNormal(20, 0.5),
)


def turns_of(trace: Trace) -> list[np.ndarray]:
    """Numbers of the requests of each session, in order."""
    order = np.argsort(trace.session, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(trace.session[order])) + 1)


def hits(trace: Trace, capacity_blocks: int) -> float:
    """Of all blocks, those that a pool with LRU has when their request arrives."""
    pool: OrderedDict[int, None] = OrderedDict()
    found = 0
    for request in range(len(trace)):
        chain = trace.chain(request).tolist()
        found += next((n for n, name in enumerate(chain) if name not in pool), len(chain))
        for name in reversed(chain):
            pool[name] = None
            pool.move_to_end(name)
        while len(pool) > capacity_blocks:
            pool.popitem(last=False)
    return found / len(trace.blocks)


def test_log_normal_numbers() -> None:
    random = np.random.default_rng(1)
    drawn = LogNormal(50, 0.8).draw(random, 100_000)
    assert drawn.mean() == pytest.approx(50, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.8, rel=0.02)
    assert LogNormal(50, 0.8, most=60).draw(random, 1000).max() == 60
    assert LogNormal(7).draw(random, 3).tolist() == [7, 7, 7]
    assert LogNormal(0.2, 1).draw_tokens(random, 1000).min() == 1


def test_requests_come_at_the_rate_that_is_stated_all_the_time() -> None:
    trace = PLAIN.draw(1, 20_000)
    assert len(trace) == 20_000 and trace.groups == ("plain",)
    assert trace.duration_s == pytest.approx(2000, rel=0.05)
    by_tenth = np.histogram(trace.arrival_s, 10)[0]
    assert by_tenth.min() > 0.85 * 2000, "sessions are in progress when it begins"
    lengths = trace.input_tokens[:2000].mean(), trace.input_tokens[-2000:].mean()
    assert lengths[0] == pytest.approx(lengths[1], rel=0.05)


def test_turns_go_on_from_each_other() -> None:
    trace = PLAIN.draw(2, 20_000)
    sessions = turns_of(trace)
    # Those that begin and end inside.
    inside = [
        turns
        for turns in sessions
        if trace.arrival_s[turns[0]] > 500 and trace.arrival_s[turns[0]] < 1500
    ]
    assert np.mean([len(turns) for turns in inside]) == pytest.approx(4, rel=0.1)
    added, pauses = [], []
    for turns in sessions:
        for one, following in zip(turns, turns[1:], strict=False):
            before, after = trace.chain(one), trace.chain(following)
            whole = trace.input_tokens[one] // trace.block_tokens
            assert (before[:whole] == after[:whole]).all()
            answer = trace.output_tokens[one]
            added.append(trace.input_tokens[following] - trace.input_tokens[one] - answer)
            gap_s = trace.arrival_s[following] - trace.arrival_s[one]
            pauses.append(gap_s - answer * PLAIN.token_s)
    assert min(added) >= 1 and np.mean(added) == pytest.approx(100, rel=0.03)
    assert min(pauses) > 0 and np.mean(pauses) == pytest.approx(20, rel=0.03)
    assert trace.output_tokens.mean() == pytest.approx(200, rel=0.03)


def test_shared_texts_are_preferred_by_zipfs_law() -> None:
    trace = replace(PLAIN, turns=1).draw(3, 20_000)
    firsts = trace.blocks[trace.block_starts[:-1]]
    seen = np.sort(np.unique(firsts, return_counts=True)[1])[::-1] / len(trace)
    law = 1 / np.arange(1, 21)
    np.testing.assert_allclose(seen, law / law.sum(), rtol=0.15)
    assert trace.reusable_share() == pytest.approx(2 / np.diff(trace.block_starts).mean(), rel=0.02)
    assert trace.input_tokens.mean() == pytest.approx(1024 + 700, rel=0.02)


def test_chosen_texts_lie_one_behind_the_other() -> None:
    documents = SharedTexts(count=3, tokens=LogNormal(512), exponent=0, chosen=2)
    trace = Sessions(
        name="pairs", rate=1, shared=(documents,), opening=LogNormal(10), output=LogNormal(1)
    ).draw(1, 500)
    assert {*trace.input_tokens.tolist()} == {1034}
    chains = np.array([trace.chain(request)[:2] for request in range(500)])
    assert len(np.unique(chains[:, 0])) == 3
    assert len(np.unique(chains[:, 1])) == 9, "the second is another block behind another first"


def test_no_prompt_is_longer_than_the_most() -> None:
    trace = replace(PLAIN, turns=50, max_tokens=5000).draw(1, 3000)
    assert 4000 < trace.input_tokens.max() <= 5000


def test_a_trace_without_an_end_goes_on_as_it_began() -> None:
    """Statistics of late requests are those of early ones, also what is shared over parts."""
    source = replace(PLAIN, rate=200.0)
    parts = source.parts(4)
    taken = [next(parts) for _ in range(12)]
    trace = join(taken)
    assert len(trace) > 12_000 and trace.duration_s == pytest.approx(len(trace) / 200, rel=0.05)
    begin = source.draw(4, 5000)
    for name in ("arrival_s", "input_tokens", "blocks", "session"):
        np.testing.assert_array_equal(
            getattr(begin, name), getattr(trace, name)[: len(getattr(begin, name))]
        )
    known = KnownNames()
    shares = []
    for part in taken:
        blocks, again = known.blocks, known.again
        known.add(part)
        shares.append((known.again - again) / (known.blocks - blocks))
    assert min(shares[4:]) > 0.9 * max(shares[4:]), "shared texts are the same ones in each part"
    assert known.again / known.blocks == pytest.approx(trace.reusable_share())
    by_part = [np.mean([len(turns) for turns in turns_of(part)]) for part in taken]
    assert max(by_part[1:]) < 1.2 * min(by_part[1:])


def test_only_what_is_under_way_is_remembered() -> None:
    def peak_bytes(many: int) -> int:
        parts = replace(PLAIN, rate=50.0).parts(1)
        tracemalloc.start()
        try:
            for _ in range(many):
                next(parts)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(2)
    assert peak_bytes(24) < 1.2 * peak_bytes(6)


def test_many_ways_to_choose_documents() -> None:
    ways = SharedTexts(count=5000, tokens=LogNormal(1200, 0.4), exponent=0.0, chosen=3)
    source = replace(PLAIN, shared=(ways,))
    trace = source.draw(1, 3000)
    assert trace.blocks.max() > 10**10, "1.25e11 ways, none of which is remembered"
    assert len(np.unique(trace.blocks[trace.block_starts[:-1]])) < 5001
    with pytest.raises(ConfigError, match="ways, whose blocks have more names than there are"):
        replace(source, shared=(replace(ways, chosen=6),)).draw(1, 1)


@pytest.mark.parametrize("name", sorted(WORKLOADS.keys() - {"tool_and_agent"}))
def test_workloads_have_the_lengths_that_their_distributions_say(name: str) -> None:
    source = WORKLOADS[name](rate=5.0)
    traces = [source.draw(seed, 5000) for seed in range(8)]  # each with shared texts of its own
    inputs, outputs = (
        np.mean([getattr(trace, name).mean() for trace in traces])
        for name in ("input_tokens", "output_tokens")
    )
    # Of a request in a session of geometric length, `turns - 1` turns lie before it on average.
    shared = sum(one.tokens.mean * one.chosen for one in source.shared)
    before = (source.turns - 1) * (source.output.mean + source.added.mean)
    assert inputs == pytest.approx(shared + source.opening.mean + before, rel=0.1)
    assert outputs == pytest.approx(source.output.mean, rel=0.03)
    assert np.mean([trace.duration_s for trace in traces]) == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_each_workload(name: str) -> None:
    workload = WORKLOADS[name](rate=2.0)
    trace = workload.draw(7, 3000)
    assert len(trace) == 3000
    assert trace.duration_s == pytest.approx(1500, rel=0.25)
    again, other = workload.draw(7, 3000), workload.draw(8, 3000)
    for column in ("arrival_s", "input_tokens", "output_tokens", "blocks", "session", "group"):
        np.testing.assert_array_equal(getattr(trace, column), getattr(again, column))
    assert trace.arrival_s.tolist() != other.arrival_s.tolist()
    pages = workload.draw(7, 100, block_tokens=16)
    assert pages.block_tokens == 16 and len(pages) == 100


def test_tool_and_agent_has_the_published_statistics() -> None:
    trace = WORKLOADS["tool_and_agent"]().draw(1, 23_608)
    assert trace.duration_s == pytest.approx(3600, rel=0.03)
    assert trace.input_tokens.mean() == pytest.approx(8596, rel=0.04)
    assert trace.output_tokens.mean() == pytest.approx(182, rel=0.04)
    plateau = trace.reusable_share()
    assert plateau == pytest.approx(0.59, abs=0.02)
    names, uses = np.unique(trace.blocks, return_counts=True)
    assert 0.5 < np.mean(uses == 1), "over half of the blocks are never asked for again"
    firsts = np.isin(names, trace.blocks[trace.block_starts[:-1]])
    hottest = np.argsort(uses)[-5:]
    assert uses[hottest[0]] > 0.1 * len(trace) and firsts[hottest].any(), "hot first blocks"
    assert hits(trace, 3_000_000 // 512) / plateau == pytest.approx(0.75, abs=0.05)
    assert trace.groups == ("tool", "agent")
    assert np.mean(trace.group == 0) == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: LogNormal(-1), r"mean must be 0 to most \(inf\), got -1"),
        (lambda: LogNormal(5, most=4), r"mean must be 0 to most \(4\), got 5"),
        (lambda: LogNormal(5, -0.1), "spread must be 0 or more"),
        (lambda: SharedTexts(count=0, tokens=LogNormal(1)), "at least 1, got 0, 1"),
        (lambda: SharedTexts(tokens=LogNormal(1), exponent=-1), "exponent must be 0 or more"),
        (lambda: replace(PLAIN, rate=0), "rate must be above 0 requests per second, got 0"),
        (lambda: replace(PLAIN, turns=0.5), "turns must be 1 or more and finite, got 0.5"),
        (lambda: replace(PLAIN, token_s=-1), "token_s must be 0 seconds or more, got -1"),
        (lambda: replace(PLAIN, max_tokens=0), r"max_tokens must be 1 to 2\^31 - 1, got 0"),
        (lambda: replace(PLAIN, max_tokens=1000).draw(1, 5), "within max_tokens"),
        (lambda: PLAIN.draw(1, 0), "requests must be at least 1, got 0"),
        (lambda: Mixture((PLAIN,)).draw(1, 0), "requests must be at least 1, got 0"),
        (lambda: Mixture(()), "at least one kind"),
    ],
)
def test_wrong_numbers(wrong: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        wrong()
