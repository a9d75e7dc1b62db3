"""What the state makes of what was sent, what is reported, and of time."""

import numpy as np
import pytest

from inlay.cluster.decision import Decision
from inlay.core.errors import ArgumentError
from inlay.core.instance_messages import StepSample
from tests.unit.cluster.clusters import load, request, sent, state_of


def test_a_queue_drains_with_time_and_ends_with_what_was_computed() -> None:
    state = state_of("both", "both")
    sent(state, "a", 0, 0.0, work_s=2.0)
    sent(state, "b", 0, 0.0, work_s=1.0)
    assert state.wait_s(0, 0.0).tolist() == [3.0, 0.0]
    assert state.wait_s(0, 1.0).tolist() == [2.0, 0.0]
    state.prefill_done("a", 2.5)  # later than expected: the second begins now
    assert state.wait_s(0, 2.5).tolist() == [1.0, 0.0]
    state.prefill_done("b", 3.0)
    assert state.wait_s(0, 3.0).tolist() == [0.0, 0.0]
    assert state.rows.tolist() == [2, 0]


def test_urgent_requests_do_not_wait_for_others() -> None:
    state = state_of("both")
    decision = Decision(policy="test", prefill=0, decode=0, work_s=1.0)
    for number, priority in enumerate((-1, 0, 1)):
        state.dispatched(str(number), request(priority=priority), decision, 0.0)
    assert [float(state.wait_s(priority, 0.0)[0]) for priority in (-1, 0, 1)] == [1.0, 2.0, 3.0]


def test_a_report_counts_what_others_sent_and_does_not_lose_what_it_cannot_know() -> None:
    state = state_of("both")
    state.report(0, load(waiting=2, prefill_tokens=10_000), 0.0)
    foreign_s = float(state.wait_s(0, 0.0)[0])
    assert foreign_s > 1.0
    sent(state, "new", 0, 0.01, work_s=1.0)
    # Made before the request came there.
    state.report(0, load(waiting=2, prefill_tokens=10_000), 0.015)
    assert float(state.wait_s(0, 0.015)[0]) == pytest.approx(foreign_s + 1.0, rel=1e-2)


def test_a_report_of_a_busy_instance_that_counts_too_few_is_older_than_what_was_sent() -> None:
    state = state_of("both")
    sent(state, "a", 0, 0.0, work_s=1.0)
    sent(state, "b", 0, 0.1, work_s=1.0)
    # One long step later it has read the first alone.
    state.report(0, load(running=1, prefill_tokens=500), 1.0)
    assert 1.0 < float(state.wait_s(0, 1.0)[0]) < 1.5
    state.report(0, load(waiting=1, running=1, prefill_tokens=500), 1.1)
    assert float(state.wait_s(0, 1.1)[0]) < 0.5


def test_reports_teach_the_timing_and_set_what_decodes() -> None:
    state = state_of("both")
    samples = tuple(StepSample(0, 0, 8, 8000, 0.05) for _ in range(20))
    state.report(0, load(running=8, context_tokens=8000, samples=samples), 0.0)
    assert state.rows[0] == 8 and state.context_tokens[0] == 8000
    assert state.step_s[0] == pytest.approx(0.05, rel=0.1)


def test_what_comes_is_counted_and_what_goes_is_not() -> None:
    state = state_of("both")
    sent(state, "a", 0, 0.0, ttft_s=1.0, tbt_s=0.01)
    assert state.load_after(0, 0.0, 0.0)[0] == 0
    assert state.load_after(0, 2.0, 0.0) == (1.0, 1000.0)
    state.prefill_done("a", 1.0)
    assert state.load_after(0, 0.0, 1.0)[0] == 1.0
    # It is expected to end with its 200 tokens, 2 s later.
    assert state.load_after(0, 2.0, 1.0)[0] == pytest.approx(0.5)
    assert state.load_after(0, 9.0, 1.0)[0] == 0
    state.finished("a", 200)
    assert state.load_after(0, 0.0, 3.0)[0] == 0
    assert not state.live


def test_requests_that_are_cancelled_leave_nothing() -> None:
    state = state_of("prefill", "decode")
    decision = Decision(policy="test", prefill=0, decode=1, work_s=1.0, ttft_s=1.0, tbt_s=0.01)
    names = [
        name for name, value in vars(state).items()
        if isinstance(value, np.ndarray) and name not in ("recent_work_s", "free_at_s")
    ]  # fmt: skip
    before = {name: getattr(state, name).copy() for name in names}
    state.dispatched("a", request(), decision, 0.0)
    state.dispatched("b", request(), decision, 0.0)
    state.prefill_done("a", 1.0)
    state.finished("a", None)
    state.finished("b", None)
    for name in names:
        assert getattr(state, name) == pytest.approx(before[name]), name
    assert state.wait_s(0, 1.0).tolist() == [0, 0]


def test_a_lost_instance_names_its_requests_and_its_slot_is_free_again() -> None:
    state = state_of("prefill", "decode", "decode")
    for number, decode in enumerate((1, 2, 1)):
        decision = Decision(policy="test", prefill=0, decode=decode, work_s=1.0)
        state.dispatched(str(number), request(), decision, 0.0)
    assert state.leave(1) == ["0", "2"]
    assert set(state.live) == {"1"}
    with pytest.raises(ArgumentError, match="nobody is in slot 1"):
        state.role(1)
    assert state.slots == [0, 2]


def test_transfers_teach_the_sender() -> None:
    state = state_of("both", "both")
    state.sending(0, 1e9)
    assert state.sending_bytes.tolist() == [1e9, 0]
    before = state.transfer(0).bandwidth
    state.sent(0, 1e9, 0.1)
    assert state.sending_bytes.tolist() == [0, 0]
    assert state.transfer(0).bandwidth > before == state.transfer(1).bandwidth


def test_utilisation_is_work_over_time() -> None:
    state = state_of("both", "both")
    for number in range(400):
        sent(state, str(number), number % 2, number * 0.1, work_s=0.1)
    assert state.utilisation_of([0, 1], 40.0) == pytest.approx(0.5, rel=0.05)
    assert state.utilisation_of([0, 1], 80.0) < 0.02


def test_slots_are_left_out_of_one_choice() -> None:
    state = state_of("prefill", "decode")
    with state.without([1]):
        assert np.isfinite(state.closed_decode_s).tolist() == [True, False]
        assert (state.num_open, state.num_splits) == (1, 0)
    assert np.isfinite(state.closed_decode_s).tolist() == [False, True]
    with state.without([0, 1]):
        assert state.num_open == 0
