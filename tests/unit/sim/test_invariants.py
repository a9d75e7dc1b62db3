"""What holds in every simulation, from the first request to the last: with lost instances, changed
roles, divided prompts, copies, preemption and refusals."""

import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.cluster.policies import POLICIES
from inlay.sim.gaps import gap_percentiles
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.trace import Trace
from inlay.sim.world import Finished, FirstToken, Reported
from tests.unit.sim.drawn_runs import run, scenarios, traces
from tests.unit.sim.worlds import PAGE, SECOND, SLOPED, instance

EXACT = ("first_s", "end_s", "tbt_s", "longest_gap_s", "cached_tokens", "prefill", "decode")


def tokens_of(seen):
    """By request, the chunks that put out a token, in order of time."""
    tokens = defaultdict(list)
    for chunk in np.sort(seen.steps[seen.steps["samples"] == 1], order="end_s"):
        tokens[int(chunk["request"])].append(chunk)
    return tokens


@given(scenario=scenarios(), trace=traces())
def test_each_token_is_served_once_or_its_request_refused(scenario, trace):
    seen = run(scenario, trace)
    results, tokens = seen.results, tokens_of(seen)
    refused = sorted(results.refusals)
    # One that has begun is refused only where nobody is left to go on with it.
    assert np.flatnonzero(~results.finished).tolist() == refused
    for number in np.flatnonzero(results.finished).tolist():
        prompt, output = trace.input_tokens[number], trace.output_tokens[number]
        stops = [int(chunk["stop"]) for chunk in tokens[number]]
        assert stops == list(range(prompt, prompt + output))
    for number in refused:
        stops = [int(chunk["stop"]) for chunk in tokens[number]]
        first = int(trace.input_tokens[number])
        assert stops == list(range(first, first + len(stops)))
        assert len(stops) < trace.output_tokens[number]
    assert not seen.simulation.world.num_live
    state = seen.simulation.state
    assert not state.live and not state.coming_rows.any() and not state.sending_bytes.any()
    assert not state.rows[state.slots].any()


@given(scenario=scenarios(), trace=traces())
def test_no_instance_does_more_than_it_can(scenario, trace):
    seen = run(scenario, trace)  # which looks at all pages again and again
    by_step = defaultdict(list)
    for chunk in seen.steps:
        by_step[int(chunk["slot"]), int(chunk["step"])].append(chunk)
    for (slot, _), chunks in by_step.items():
        config = scenario.kinds[slot].instance
        spans = [int(chunk["stop"]) - int(chunk["start"]) for chunk in chunks]
        assert sum(spans) <= config.max_batch_tokens and max(spans) <= config.prefill_chunk
        assert len({int(chunk["request"]) for chunk in chunks}) == len(chunks) <= config.max_running
    for spans in seen.busy.values():
        assert all(one[1] <= later[0] for one, later in pairwise(spans))
    for loss in scenario.losses:
        for start_s, end_s in seen.busy.get(loss.slot, ()):
            assert end_s <= loss.at_s or start_s >= loss.at_s + loss.back_s
    for _, news in seen.heard:
        if isinstance(news, Reported):
            config, report = scenario.kinds[news.slot].instance, news.report
            assert report.running <= config.max_running
            assert report.pages_free + report.pages_cached <= config.num_pages


@given(scenario=scenarios(), trace=traces())
def test_nothing_comes_before_its_cause(scenario, trace):
    seen = run(scenario, trace)
    results, tokens = seen.results, tokens_of(seen)
    first_sent_s = {}
    for sent in seen.sent:
        first_sent_s.setdefault(sent.request, sent.time_s)
    for number, sent_s in first_sent_s.items():
        assert sent_s >= trace.arrival_s[number]
    for chunk in seen.steps:
        if int(chunk["request"]) in first_sent_s:  # else it is a copy
            assert chunk["start_s"] >= first_sent_s[int(chunk["request"])]
    done = np.flatnonzero(results.finished)
    assert (results.first_s[done] > trace.arrival_s[done]).all()
    assert (results.end_s[done] >= results.first_s[done]).all()
    for number in done.tolist():
        ends = [float(chunk["end_s"]) for chunk in tokens[number]]
        assert (results.first_s[number], results.end_s[number]) == (ends[0], ends[-1])
    assert [news.time_s for _, news in seen.heard] == sorted(news.time_s for _, news in seen.heard)
    said_s = {(number, chunk["end_s"]) for number in tokens for chunk in tokens[number]}
    for by_s, news in seen.heard:
        assert news.time_s <= by_s
        if isinstance(news, FirstToken | Finished):
            at_s = min((s for n, s in said_s if n == news.request), key=_near(news, scenario))
            assert at_s + scenario.news_delay_s == pytest.approx(news.time_s)
    finished = [news.request for _, news in seen.heard if isinstance(news, Finished)]
    assert sorted(finished) == done.tolist()


@given(scenario=scenarios(), trace=traces())
def test_each_gap_is_counted(scenario, trace):
    seen = run(scenario, trace)
    tokens, gaps = tokens_of(seen), []
    for number in np.flatnonzero(seen.results.finished).tolist():
        gaps += np.diff([float(chunk["end_s"]) for chunk in tokens[number]]).tolist()
    counts = seen.results.gap_counts
    assert counts.sum() == len(gaps)
    if gaps:
        ordered = np.sort(gaps)
        for wanted in (1, 50, 90, 100):
            exact = ordered[max(0, math.ceil(wanted / 100 * len(gaps)) - 1)]
            assert gap_percentiles(counts, [wanted])[0] == pytest.approx(exact, rel=0.004)


def _near(news, scenario):
    """By how far a token is from the time at which it was told."""
    return lambda end_s: abs(end_s + scenario.news_delay_s - news.time_s)


@given(scenario=scenarios(), trace=traces())
def test_only_what_was_computed_is_found(scenario, trace):
    seen = run(scenario, trace)
    results = seen.results
    begun = np.sort(seen.steps, order="end_s")
    for number in np.flatnonzero(results.finished & (results.preemptions == 0)).tolist():
        found = int(results.cached_tokens[number])
        assert found < trace.input_tokens[number]
        before = {
            int(chunk["request"])
            for chunk in begun[begun["end_s"] <= results.first_s[number]]
            if int(chunk["request"]) < len(trace) and int(chunk["request"]) != number
        }
        chain = trace.chain(number)
        common = [_common(chain, trace.chain(other)) for other in before]
        assert found <= PAGE * max(common, default=0)


def _common(one, other):
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


@given(scenario=scenarios(roomy=True), trace=traces())
def test_nobody_is_idle_while_there_is_work(scenario, trace):
    seen = run(scenario, trace)
    until_s = {}
    for sent in reversed(seen.sent):
        end_s = until_s.get(sent.request, float(seen.results.end_s[sent.request]))
        until_s[sent.request] = sent.time_s
        if np.isnan(end_s) or _lost(sent, scenario):
            continue
        if sent.prefill == sent.decode:
            assert _is_busy(seen, sent.decode, sent.time_s, end_s)
            continue
        mine = seen.steps[
            (seen.steps["request"] == sent.request)
            & (seen.steps["start_s"] >= sent.time_s)
            & (seen.steps["end_s"] <= end_s)
        ]
        there = mine[mine["slot"] == sent.prefill]
        if len(there):
            assert _is_busy(seen, sent.prefill, sent.time_s, float(there["end_s"].max()))
        here = mine[mine["slot"] == sent.decode]
        if len(here):
            assert _is_busy(seen, sent.decode, float(here["start_s"].min()), end_s)


def _lost(sent, scenario):
    """Whether an instance of a request is lost after it was sent there, with steps that are not
    kept because they never ended."""
    return any(
        loss.slot in (sent.prefill, sent.decode) and sent.time_s <= loss.at_s + loss.back_s
        for loss in scenario.losses
    )


def _is_busy(seen, slot, start_s, end_s):
    covered = sum(
        max(0.0, min(stop, end_s) - max(start, start_s)) for start, stop in seen.busy.get(slot, ())
    )
    return covered == pytest.approx(end_s - start_s, rel=1e-9, abs=1e-9)


@given(scenario=scenarios(), trace=traces(), cuts=st.sets(st.integers(0, 24), max_size=3))
def test_how_things_of_one_time_are_told_changes_nothing(scenario, trace, cuts):
    """Losses and changes of roles in another order, and the trace in parts, which may be cut
    between requests of one time."""
    one = Simulation(scenario).run(trace)
    turned = replace(
        scenario, losses=scenario.losses[::-1], role_changes=scenario.role_changes[::-1]
    )
    marks = sorted({0, len(trace)} | {cut for cut in cuts if cut < len(trace)})
    parts = [trace.select(range(*span)) for span in pairwise(marks)]
    other = Simulation(turned).run(parts)
    assert one.refusals == other.refusals
    for name in EXACT:
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)


@given(
    lengths=st.lists(
        st.lists(st.tuples(st.integers(1, 100), st.integers(1, 20)), min_size=1, max_size=3),
        min_size=1,
        max_size=5,
    ),
    policy=st.sampled_from(sorted(POLICIES.keys() - {"random"})),
    step_time=st.sampled_from((SECOND, SLOPED)),
)
def test_requests_of_one_time_may_come_in_any_order(lengths, policy, step_time):
    """As many as there are instances: each gets its own, whoever is asked first."""
    one = instance(step_time=step_time, num_pages=2000)
    scenario = Scenario(kinds=(Kind(instance=one, count=3),), policy=policy, seed=1)
    outcomes = []
    for turn in (1, -1):
        rows = [
            (1000.0 * at, *each, (at << 8 | number) + 1)
            for at, together in enumerate(lengths)
            for number, each in list(enumerate(together))[::turn]
        ]
        results = Simulation(scenario).run(_unshared(rows))
        columns = (results.first_s, results.end_s, results.tbt_s, results.cached_tokens)
        outcomes.append(sorted(zip([row[3] for row in rows], *columns, strict=True)))
    assert outcomes[0] == outcomes[1]


def _unshared(rows):
    """A trace of arrivals, prompts, outputs and names, of which nothing is shared."""
    chains = [[name << 16 | i for i in range(-(-tokens // PAGE))] for _, tokens, _, name in rows]
    return Trace(
        arrival_s=np.array([row[0] for row in rows]),
        input_tokens=np.array([row[1] for row in rows]),
        output_tokens=np.array([row[2] for row in rows]),
        block_starts=np.cumsum([0, *map(len, chains)]),
        blocks=np.array([name for chain in chains for name in chain], np.uint64),
        block_tokens=PAGE,
    )
