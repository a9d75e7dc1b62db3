"""Health of a rail: the compiled machine and its reference act alike on any history."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.transfer.reference.rail import MS, Rail, RailEvent, RailState, is_silent

native = pytest.importorskip("inlay._native").transfer_policy

SPANS = st.one_of(
    st.sampled_from([0, 1, 99 * MS, 100 * MS, 150 * MS, 500 * MS]),
    st.integers(0, 300 * MS),
    st.integers(0, 90_000 * MS),
)
EVENTS = st.one_of(st.sampled_from(list(RailEvent)), st.just(RailEvent.TICK))
STEPS = st.tuples(EVENTS, SPANS, st.booleans(), st.booleans())


@settings(max_examples=300, deadline=None)
@given(timeout=st.integers(1, 3000 * MS), steps=st.lists(STEPS, max_size=100))
def test_both_forms_act_alike(timeout: int, steps: list[tuple[RailEvent, int, bool, bool]]) -> None:
    mine, theirs = Rail(0, timeout), native.Rail(0, timeout)
    now = 0
    for event, span, on_time, others_ready in steps:
        now += span
        if on_time and mine.next_tick < now + 90_000 * MS:
            now = max(now, mine.next_tick)
        if event is RailEvent.CLOSE and not on_time:
            continue  # seldom, it ends the history
        assert mine.on(event, now, others_ready) == theirs.on(event.value, now, others_ready)
        assert mine.state.value == theirs.state
        assert mine.reason.value == theirs.reason
        assert mine.next_tick == theirs.next_tick
        assert mine.retries == theirs.retries


@given(st.integers(0, 4), st.integers(0, 400 * MS), st.integers(0, 100 * MS))
def test_both_forms_hear_the_same_silence(
    unacknowledged: int, since_ack: int, round_trip: int
) -> None:
    mine = is_silent(unacknowledged, since_ack, round_trip)
    assert mine == native.is_silent(unacknowledged, since_ack, round_trip)


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="'broken'"):
        native.Rail(0).on("broken", 1)


def test_a_rail_that_is_cut_and_restored_is_in_use_again_within_a_second() -> None:
    """Without a word from the link: only what answers says that it is back."""
    for cut_ms in range(1, 20_000, 137):
        rail, now = Rail(0), 10 * MS
        rail.on(RailEvent.CONNECTED, now)
        restored = now + cut_ms * MS
        rail.on(RailEvent.SILENCE, now)
        while rail.state is not RailState.READY:
            now = rail.next_tick
            actions = rail.on(RailEvent.TICK, now)
            if actions.connect and now >= restored:
                now += 5 * MS
                rail.on(RailEvent.CONNECTED, now)
        assert now - restored < 1000 * MS
