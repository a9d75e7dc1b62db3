"""Who is refused, and when; what that does to others is in tests/unit/sim."""

import pytest

from inlay.cluster.admission import Admission, AdmissionConfig
from inlay.cluster.policies import make_policy
from inlay.cluster.slo import SloClass
from inlay.cluster.state import ClusterState
from inlay.core.errors import ConfigError
from tests.unit.cluster.clusters import matches, request, sent, state_of

SLO = SloClass(ttft_s=2.0, tbt_s=0.1)


def gate(mode: str = "predicted", **settings: object) -> Admission:
    config = AdmissionConfig(mode=mode, **settings)  # type: ignore[arg-type]
    return Admission(make_policy("inlay"), config)


def busy(rows: int) -> ClusterState:
    state = state_of("both")
    for number in range(rows):
        sent(state, str(number), 0, 0.0, work_s=0.0, ttft_s=0.0)
        state.prefill_done(str(number), 0.0)
    return state


def test_a_late_first_token_is_refused_until_the_queue_is_short_enough() -> None:
    state = state_of("both")
    sent(state, "a", 0, 0.0, work_s=5.0)
    slo = SloClass(ttft_s=2.0)
    decision = gate().choose(request(slo=slo), matches(), state, 0.0)
    assert decision.refusal is not None
    assert "first token is expected after" in decision.refusal.reason
    again_s = decision.refusal.retry_after_s
    assert 3.0 < again_s < 4.5
    assert gate().choose(request(slo=slo), matches(), state, again_s + 0.01).refusal is None
    assert gate("off").choose(request(slo=slo), matches(), state, 0.0).refusal is None


def test_slow_decoding_is_refused() -> None:
    state = busy(60)
    state.step_s[:] = 0.2
    decision = gate().choose(request(slo=SLO), matches(), state, 0.0)
    assert decision.refusal is not None and "gap between tokens" in decision.refusal.reason
    assert decision.refusal.retry_after_s >= 0.5


def test_an_idle_instance_takes_what_it_cannot_serve_in_time() -> None:
    impossible = SloClass(name="fast", ttft_s=1e-3, tbt_s=1e-3)
    state = state_of("both")
    assert gate().choose(request(slo=impossible), matches(), state, 0.0).refusal is None
    sent(state, "a", 0, 0.0, work_s=2.0)
    refusal = gate().choose(request(slo=impossible), matches(), state, 0.0).refusal
    assert refusal is not None and refusal.retry_after_s == 2.0
    assert "on an idle instance, and the objective of class fast is 0.001 s" in refusal.reason


def test_full_rows_are_refused_where_there_are_objectives() -> None:
    loose = SloClass(tbt_s=10.0)
    decision = gate("early").choose(request(slo=loose), matches(), busy(64), 0.0)
    assert decision.refusal is not None and "no room" in decision.refusal.reason
    assert gate("early").choose(request(), matches(), busy(64), 0.0).refusal is None


def test_pages_that_are_not_there_are_refused_where_there_are_objectives() -> None:
    loose = SloClass(tbt_s=10.0)
    state = busy(1)
    asked = request(slo=loose)
    state.pages_total[:] = 100
    state.pages_free[:] = 30
    state.pages_cached[:] = 60  # which may be given away
    assert gate().choose(asked, matches(), state, 0.0).refusal is None
    state.coming_pages[:] = 79
    state.coming_rows[:] = 3
    state.coming_tokens[:] = 100 * state.page_tokens
    refusal = gate().choose(asked, matches(), state, 0.0).refusal
    assert refusal is not None and "no room is expected where it would decode" in refusal.reason
    # Without objectives it may wait there.
    assert gate().choose(request(), matches(), state, 0.0).refusal is None


def test_a_tenant_above_its_share_is_taken_while_there_is_room() -> None:
    state = busy(1)
    admission = gate()
    for tenant in ("much", "little"):
        for _ in range(9 if tenant == "much" else 1):
            asked = request(slo=SloClass(ttft_s=60.0, tbt_s=10.0), tenant=tenant)
            assert admission.choose(asked, matches(), state, 0.0).refusal is None
    asked = request(slo=SloClass(ttft_s=60.0, tbt_s=10.0), tenant="much")
    assert admission.choose(asked, matches(), state, 0.0).refusal is None


def test_queues_are_bounded_without_objectives() -> None:
    state = state_of("both")
    sent(state, "a", 0, 0.0, work_s=100.0)
    for priority in (0, 1):
        assert gate().choose(request(priority=priority), matches(), state, 0.0).refusal is not None


def test_the_wait_for_room_to_decode_is_bounded_without_objectives() -> None:
    state = busy(64)
    assert gate().choose(request(), matches(), state, 0.0).refusal is None
    for number in range(20):
        sent(state, f"waits {number}", 0, 0.0, work_s=0.0, ttft_s=0.0)
    for priority in (0, 1):
        asked = request(priority=priority)
        refusal = gate(max_wait_s=1.0).choose(asked, matches(), state, 0.0).refusal
        assert refusal is not None and "no room is expected" in refusal.reason
        assert gate(max_wait_s=10.0).choose(asked, matches(), state, 0.0).refusal is None


def test_best_effort_gives_up_its_place() -> None:
    state = busy(63)
    batch = make_policy("inlay").choose(request(500, priority=1), matches(), state, 0.0)
    state.dispatched("batch", request(500, priority=1), batch, 0.0)
    state.prefill_done("batch", 0.0)
    loose = SloClass(tbt_s=10.0)
    decision = gate("early").choose(request(slo=loose), matches(), state, 0.0)
    assert decision.refusal is None and decision.preempt == "batch"
    decision = gate("early").choose(request(slo=loose, priority=1), matches(), state, 0.0)
    assert decision.preempt is None


def test_a_prompt_is_not_put_among_decodes_that_it_makes_late() -> None:
    state = state_of("prefill", "decode")
    sent(state, "a", 0, 0.0, work_s=1.0)  # at once where it decodes, or behind this one
    assert gate().choose(request(100), matches(0, 0), state, 0.0).prefill == 1
    loose, tight = SloClass(tbt_s=0.1), SloClass(itl_s=0.03)
    assert gate().choose(request(100, slo=loose), matches(0, 0), state, 0.0).prefill == 1
    assert gate().choose(request(100, slo=tight), matches(0, 0), state, 0.0).split


def test_wrong_settings_are_told() -> None:
    with pytest.raises(ConfigError, match="'soon' is not one of off, early, predicted"):
        gate("soon")
    with pytest.raises(ConfigError, match=r"max_load must be above 0, got 0"):
        gate(max_load=0)
