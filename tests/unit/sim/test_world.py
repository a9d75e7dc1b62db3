"""What holds in every world, and a few times that can be worked out by hand."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.slo import tbt_s
from inlay.cluster.state import ClusterState
from inlay.cluster.timing import TimingModel
from inlay.core.errors import ArgumentError
from inlay.core.instance_messages import StepSample
from inlay.sim.step_time import NUM_FEATURES, StepTime, calibrated
from inlay.sim.world import Finished, FirstToken, Reported
from tests.unit.sim.worlds import (
    PAGE,
    SECOND,
    SLOPED,
    Drawn,
    instance,
    requests,
    run,
    submit,
    tell,
    world_of,
)

LINKED = {
    "step_time": SLOPED,
    "token_bytes": 10.0,
    "layers": 4,
    "out_bytes_per_s": 50.0,
    "in_bytes_per_s": 80.0,
}


def by_request(rows):
    grouped = defaultdict(list)
    for row in rows:
        grouped[int(row["request"])].append(row)
    return grouped


@given(drawn=requests(slots=3, split=True), noise=st.sampled_from((0.0, 0.3)))
def test_no_token_is_lost_or_served_twice(drawn, noise):
    world = run([instance(noise=noise, **LINKED)] * 3, drawn, seed=4)
    steps, outcomes = world.steps(), world.outcomes()
    assert sorted(outcomes["request"]) == list(range(len(drawn))) and not world.num_live
    chunks = by_request(steps)
    for outcome in outcomes:
        number = int(outcome["request"])
        request = drawn[number]
        mine = [chunk for chunk in chunks[number] if chunk["slot"] == outcome["decode"]]
        tokens = [c for c in mine if c["samples"] and c["stop"] >= request.prompt]
        # Each output token once, in order, behind all that was known before.
        stops = [int(chunk["stop"]) for chunk in tokens]
        assert stops == list(range(request.prompt, request.prompt + request.output))
        ends = [float(chunk["end_s"]) for chunk in tokens]
        assert (outcome["first_s"], outcome["end_s"]) == (ends[0], ends[-1])
        gaps = np.diff(ends).tolist()
        assert math.isclose(outcome["tbt_s"], tbt_s(gaps), rel_tol=1e-5, abs_tol=1e-5)
        assert math.isclose(outcome["longest_gap_s"], max(gaps, default=0.0), rel_tol=1e-5)
        # What is not computed was cached, or came from elsewhere; nothing is computed twice unless
        # it was preempted.
        if not outcome["preemptions"] and request.prefill == request.decode:
            spans = [(int(chunk["start"]), int(chunk["stop"])) for chunk in mine]
            assert spans[0][0] == outcome["cached_tokens"] <= request.prompt - 1
            assert all(one[1] == later[0] for one, later in zip(spans, spans[1:], strict=False))


@given(drawn=requests(slots=3, split=True), samples=st.booleans())
def test_a_state_hears_what_others_are_told(drawn, samples):
    """It has the numbers that it would have if somebody gave it each piece of news."""
    configs = [instance(**LINKED)] * 3
    told, hears = state_of(configs), state_of(configs)
    worlds = world_of(configs, samples=samples), world_of(configs, samples=samples, state=hears)
    finished = []

    def hear(until_s):
        for world in worlds:
            assert world.advance(until_s)
        ends = [tell(told, news) for news in worlds[0].news()]
        assert not worlds[1].news()
        over = worlds[1].finished()
        assert over == [request for request in ends if request is not None]
        finished.extend(over)
        for mine, theirs in zip(hears._arrays(), told._arrays(), strict=True):
            assert mine.tolist() == theirs.tolist()

    for number, request in enumerate(drawn):
        hear(request.arrival_s)
        decision = Decision(
            policy="test", prefill=request.prefill, decode=request.decode, ttft_s=1.0, work_s=1.0
        )
        view = RequestView(num_tokens=request.prompt, priority=request.priority)
        for world, state in zip(worlds, (told, hears), strict=True):
            submit(world, number, request)
            state.dispatched(str(number), view, decision, request.arrival_s)
    hear(np.inf)
    assert sorted(finished) == list(range(len(drawn))) and not hears.live


def state_of(configs):
    state, timing = ClusterState(PAGE, 40), TimingModel(np.array([1, 0.1, 0.01, 1, 0.1, 0.01]))
    for slot, config in enumerate(configs):
        state.join(slot, "both", timing, pages_total=config.num_pages)
    return state


@given(drawn=requests(slots=3, split=True))
def test_capacities_and_causality(drawn):
    config = instance(**LINKED)
    world = run([config] * 3, drawn)  # pages are checked at each submission
    steps = world.steps()
    for slot in range(3):
        here = steps[steps["slot"] == slot]
        ended_s = 0.0
        for step in np.unique(here["step"]):
            chunks = here[here["step"] == step]
            spans = chunks["stop"] - chunks["start"]
            assert spans.sum() <= config.max_batch_tokens and spans.max() <= config.prefill_chunk
            assert len(chunks) <= config.max_running
            assert len(set(chunks["request"])) == len(chunks)
            assert chunks["start_s"][0] >= ended_s
            ended_s = chunks["end_s"][0]
    for chunk in steps:
        assert chunk["start_s"] >= drawn[int(chunk["request"])].arrival_s
    for outcome in world.outcomes():
        assert outcome["arrival_s"] < outcome["first_s"] <= outcome["end_s"]


@given(drawn=requests(slots=2))
def test_nobody_is_idle_while_there_is_work(drawn):
    world = run([instance(step_time=SLOPED)] * 2, drawn)
    steps, outcomes = world.steps(), world.outcomes()
    for slot in range(2):
        here = steps[steps["slot"] == slot]
        busy = sorted({(float(c["start_s"]), float(c["end_s"])) for c in here})
        for outcome in outcomes[outcomes["decode"] == slot]:
            arrival_s, end_s = float(outcome["arrival_s"]), float(outcome["end_s"])
            covered = sum(
                max(0.0, min(stop, end_s) - max(start, arrival_s)) for start, stop in busy
            )
            assert math.isclose(covered, end_s - arrival_s, rel_tol=1e-9)


@given(drawn=requests(slots=3, whole_seconds=True), delay=st.sampled_from((0.0, 1.0)))
def test_what_happens_at_one_time_in_several_places_has_no_order(drawn, delay):
    configs = [instance()] * 3
    turned = sorted(range(len(drawn)), key=lambda i: (drawn[i].arrival_s, -drawn[i].prefill, i))
    one = run(configs, drawn, news_delay_s=delay)
    other = run(configs, drawn, order=turned, news_delay_s=delay)
    assert np.array_equal(
        np.sort(one.outcomes(), order="request"), np.sort(other.outcomes(), order="request")
    )
    for slot in range(3):
        assert one.index.num_blocks(slot) == other.index.num_blocks(slot)


def test_steps_take_what_they_compute():
    two = StepTime(
        (
            ((0.5, 0.01, 0.0, 0.5, 0.2, 0.001, 0.0, 0.0), (2.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0)),
            ((0.0, 0.0, 0.001, 0.0, 0.0, 0.0, 0.25, 0.125),),
        )
    )
    world = run(
        [instance(step_time=two, experts=8, experts_per_token=2)],
        [Drawn(0, 20, 3), Drawn(0, 30, 5)],
    )
    for number in np.unique(steps := world.steps())["step"]:
        chunks = steps[steps["step"] == number]
        row = np.zeros((1, NUM_FEATURES))
        for chunk in chunks:
            start, stop = int(chunk["start"]), int(chunk["stop"])
            if chunk["samples"]:
                row[0, 6] += 1
            if chunk["samples"] and stop == start + 1:
                row[0, 4:6] += 1, stop
            else:
                row[0, 1:3] += stop - start, (stop - start) * (start + stop + 1) // 2
        row[0, 0 if row[0, 1] else 3] = 1
        row[0, 7] = 8 * (1 - 0.75 ** (row[0, 1] + row[0, 4]))
        took_s = float(chunks["end_s"][0] - chunks["start_s"][0])
        assert math.isclose(took_s, two.seconds(row)[0], rel_tol=1e-9)


def test_noise_has_a_mean_of_one_and_its_own_draws():
    requests_ = [Drawn(0, 4, 100), Drawn(0, 4, 100, prefill=1, decode=1)]
    first, again, other = (
        run([instance(noise=0.2)] * 2, requests_, seed=seed).steps() for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    took_s = first["end_s"] - first["start_s"]
    assert abs(took_s.mean() - 1) < 0.05 and 0.15 < took_s.std() < 0.25
    assert not np.array_equal(took_s[first["slot"] == 0], took_s[first["slot"] == 1])


def test_long_answers_look_back_at_steps_that_others_do_not_need():
    """Ends of steps are forgotten once some thousand are kept, but for those of long answers."""
    roomy = instance(noise=0.3, num_pages=8000)
    drawn = [Drawn(0, 4, 14_000), *(Drawn(10.0 * i, 4, 5) for i in range(1, 1500))]
    world = run([roomy], drawn)
    outcomes, steps = world.outcomes(), world.steps()
    for number in (0, 700, 1499):
        mine = steps[(steps["request"] == number) & (steps["samples"] > 0)]
        gaps = np.diff(np.sort(mine["end_s"])).tolist()
        outcome = outcomes[outcomes["request"] == number][0]
        assert len(gaps) == drawn[number].output - 1
        assert math.isclose(outcome["tbt_s"], tbt_s(gaps), rel_tol=1e-6)
        assert math.isclose(outcome["longest_gap_s"], max(gaps), rel_tol=1e-6)


@pytest.mark.parametrize("bytes_per_s", [1e6, 5.0])
def test_keys_and_values_stream_behind_the_computing(bytes_per_s):
    """What is left of them when the last layer is computed goes at the end."""
    config = instance(
        step_time=SECOND, token_bytes=10.0, layers=4,
        out_bytes_per_s=bytes_per_s, in_bytes_per_s=1e9,
    )  # fmt: skip
    world = run([config] * 2, [Drawn(0, 17, 2, prefill=0, decode=1)], link_latency_s=0.25)
    (outcome,) = world.outcomes()
    sent = 16 * 10.0
    prompt_s = max(1 + sent / 4 / bytes_per_s, sent / bytes_per_s) + 0.25
    assert math.isclose(outcome["first_s"], prompt_s + 1, rel_tol=1e-9)
    assert math.isclose(world.sent_bytes(0), sent, rel_tol=1e-9) and not world.sent_bytes(1)
    assert (outcome["prefill"], outcome["decode"]) == (0, 1)


def test_a_sender_with_many_receivers_is_slow_to_each():
    config = instance(step_time=SECOND, token_bytes=10.0, out_bytes_per_s=10.0, in_bytes_per_s=1e9)
    alone = run([config] * 3, [Drawn(0, 9, 1, prefill=0, decode=1)])
    both = run([config] * 3, [Drawn(0, 9, 1, prefill=0, decode=slot) for slot in (1, 2)])
    # 80 bytes at 10 a second, then two times 80.
    assert alone.outcomes()["first_s"].tolist() == pytest.approx([1 + 8 + 1])
    assert both.outcomes()["first_s"].tolist() == pytest.approx([1 + 16 + 1] * 2)


def test_what_the_receiver_has_is_not_sent():
    config = instance(step_time=SECOND, token_bytes=10.0, out_bytes_per_s=1e3, in_bytes_per_s=1e3)
    drawn = [
        Drawn(0, 33, 1, shared=24, prefill=1, decode=1),
        Drawn(50, 33, 1, shared=24, prefill=0, decode=1),
        Drawn(100, 26, 1, shared=24, prefill=0, decode=1),
    ]
    world = run([config] * 2, drawn)
    assert world.sent_bytes(0) == pytest.approx((32 - 24) * 10)
    cached = {int(o["request"]): int(o["cached_tokens"]) for o in world.outcomes()}
    assert cached == {0: 0, 1: 24, 2: 24}
    assert world.num_steps(0) == 2  # the second request; of the third nothing was wanted


def test_news_come_as_late_as_they_do():
    world = world_of([instance()], news_delay_s=0.5, report_s=2.0)
    request = Drawn(0, 8, 3)
    submit(world, 7, request)
    world.advance(1.25)  # the first token came a quarter of a second ago
    assert not world.news() and not world.index.num_blocks(0)
    world.advance(1.5)
    first, report = world.news()
    assert first == FirstToken(1.5, 7) and isinstance(report, Reported)
    assert report.report.running == 1 and report.report.context_tokens == 9
    assert report.report.samples == (StepSample(8, 36, 0, 0, 1.0),)
    assert world.index.match(request.names(7), 1.5).tolist() == [2]
    world.advance(3.5)
    finished, last = world.news()
    assert finished == Finished(3.5, 7, 3)
    assert (last.time_s, last.report.running) == (3.5, 0)
    assert last.report.pages_free + last.report.pages_cached == 32
    world.advance(100)  # an idle instance says so each second
    (last,) = world.news()
    assert last.time_s == 99.5
    world.advance(math.inf)
    assert world.now_s == 100


def test_bad_input_is_refused():
    world = world_of([instance()] * 2)
    for problem, change in (
        ("never fits on instance 0", {"prompt": 200}),
        ("there are 2, got 2", {"prefill": 2, "decode": 2}),
        ("has no bandwidth", {"decode": 1}),
        ("at least one of each", {"output": 0}),
    ):
        with pytest.raises(ArgumentError, match=problem):
            submit(world, 0, Drawn(**{"arrival_s": 0, "prompt": 10, "output": 2} | change))
    with pytest.raises(ArgumentError, match="it is 5"):
        world.advance(5)
        world.advance(4)
    with pytest.raises(ArgumentError, match="max_batch_tokens"):
        world.add(instance(max_batch_tokens=4))
    with pytest.raises(ArgumentError, match="page_tokens"):
        world.add(instance(page_tokens=PAGE + 1))
    assert not world.num_live


def test_what_is_believed_of_steps_counts_experts():
    """Half a second for each that is chosen, one of 512 by each token: nearly a line."""
    step_time = StepTime(((tuple([1e-3] + [0.0] * 6 + [0.5]),),))
    found = calibrated(step_time, experts=512, experts_per_token=1)
    assert [found.decode_s(rows, 0) for rows in (8, 64)] == pytest.approx([4, 30], rel=0.3)


def test_a_fitted_step_time_is_found_again():
    true = np.array([8e-3, 4e-5, 2e-9, 6e-3, 2e-5, 1e-8])
    found = calibrated(StepTime.fitted(true))
    assert np.allclose(found.coefficients, true, rtol=0.05)
    assert found.relative_std < 0.05
