"""What each policy chooses, one decision at a time."""

import numpy as np
import pytest

from inlay.cluster.decision import NOWHERE, explain
from inlay.cluster.policies import POLICIES, Policy, make_policy
from inlay.core.errors import ConfigError
from tests.unit.cluster.clusters import matches, request, sent, state_of


@pytest.fixture(params=sorted(POLICIES))
def policy(request: pytest.FixtureRequest) -> Policy:
    return make_policy(request.param, seed=1)


def test_nobody_is_a_refusal(policy: Policy) -> None:
    decision = policy.choose(request(), matches(), state_of(), 0.0)
    assert decision.refusal is not None and decision.prefill == NOWHERE


def test_drained_and_gone_instances_are_not_chosen(policy: Policy) -> None:
    state = state_of("both", "both", "both")
    state.drain(0)
    state.leave(2)
    chosen = {policy.choose(request(), matches(9, 0, 9), state, 0.0).prefill for _ in range(9)}
    assert chosen == {1}


def test_roles_are_kept_where_there_are_both(policy: Policy) -> None:
    state = state_of("decode", "prefill")
    decision = policy.choose(request(4000), matches(0, 0), state, 0.0)
    assert (decision.prefill, decision.decode) == (1, 0)
    assert decision.split


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_role_alone_does_all(policy: Policy, role: str) -> None:
    decision = policy.choose(request(4000), matches(0, 0), state_of(role, role), 0.0)
    assert decision.prefill == decision.decode
    assert decision.refusal is None


def test_the_last_token_is_computed(policy: Policy) -> None:
    decision = policy.choose(request(160), matches(10), state_of("both"), 0.0)
    assert decision.reused_blocks == 9
    assert decision.work_s > 0


def test_matches_of_other_lengths_than_the_state_are_fitted(policy: Policy) -> None:
    state = state_of("both", "both")
    assert policy.choose(request(), matches(3), state, 0.0).refusal is None
    assert policy.choose(request(), matches(3, 3, 3), state, 0.0).refusal is None


def test_decisions_explain_themselves(policy: Policy) -> None:
    state = state_of("both", "both", "prefill")
    state.drain(1)
    decision = policy.choose(request(), matches(1, 2, 3), state, 0.0)
    names = ["a", "b", "c"]
    rows = explain(decision, names)
    assert rows[0]["chosen"] is (rows[0]["instance"] == names[decision.prefill])
    assert all(np.isfinite(row["cost"]) for row in rows)
    assert "b" not in {row["instance"] for row in rows}


def test_round_robin_takes_turns() -> None:
    policy = make_policy("round_robin")
    state = state_of("both", "both", "both")
    chosen = [policy.choose(request(), matches(), state, 0.0).prefill for _ in range(5)]
    assert chosen == [0, 1, 2, 0, 1]


def test_random_is_even_and_seeded() -> None:
    state = state_of("both", "both", "both")
    runs = []
    for _ in range(2):
        policy = make_policy("random", seed=7)
        runs.append([policy.choose(request(), matches(), state, 0.0).prefill for _ in range(900)])
    assert runs[0] == runs[1]
    assert np.bincount(runs[0], minlength=3).min() > 250


def test_least_loaded_takes_the_shortest_queue() -> None:
    policy = make_policy("least_loaded")
    state = state_of("both", "both", "both")
    sent(state, "a", 0, 0.0, work_s=2.0)
    sent(state, "b", 1, 0.0, work_s=1.0)
    sent(state, "c", 2, 0.0, work_s=3.0)
    assert policy.choose(request(), matches(60, 0, 60), state, 0.5).prefill == 1


def test_local_cache_aware_weighs_blocks_against_the_queue() -> None:
    policy = make_policy("local_cache_aware")
    state = state_of("both", "both")
    assert policy.choose(request(8000), matches(0, 400), state, 0.0).prefill == 1
    sent(state, "a", 1, 0.0, work_s=5.0)
    assert policy.choose(request(8000), matches(0, 400), state, 0.0).prefill == 0


def test_kv_centric_copies_what_another_has_far_more_of() -> None:
    policy = make_policy("kv_centric")
    state = state_of("both", "both", copies=True)
    sent(state, "a", 1, 0.0, work_s=5.0)
    decision = policy.choose(request(8000), matches(10, 400), state, 0.0)
    assert decision.prefill == 0 and decision.copy is not None
    assert (decision.copy.source, decision.copy.first_block) == (1, 10)
    assert decision.reused_blocks == 400
    # Not much more: the difference is computed.
    assert policy.choose(request(8000), matches(200, 400), state, 0.0).copy is None


def test_kv_centric_without_copies_computes() -> None:
    policy = make_policy("kv_centric")
    state = state_of("both", "both")
    sent(state, "a", 1, 0.0, work_s=5.0)
    decision = policy.choose(request(8000), matches(10, 400), state, 0.0)
    assert (decision.prefill, decision.copy, decision.reused_blocks) == (0, None, 10)


def test_unknown_names_and_options_are_told() -> None:
    with pytest.raises(ConfigError, match="round_robin"):
        make_policy("best")
    with pytest.raises(ConfigError, match="threshold"):
        make_policy("kv_centric", {"threshold": 2})
    with pytest.raises(ConfigError, match=r"balancing_threshold must be at least 1, got 0\.5"):
        make_policy("kv_centric", {"balancing_threshold": 0.5})


def test_inlay_splits_long_prompts_and_not_short_rests() -> None:
    policy = make_policy("inlay")
    state = state_of("prefill", "decode")
    assert policy.choose(request(8000), matches(0, 0), state, 0.0).split
    decision = policy.choose(request(8000), matches(0, 480), state, 0.0)
    assert (decision.prefill, decision.decode, decision.reused_blocks) == (1, 1, 480)


@pytest.mark.parametrize(("queue_s", "chosen"), [(0.0, 0), (2.0, 1)])
def test_inlay_computes_twice_only_while_an_instance_is_free(queue_s: float, chosen: int) -> None:
    state = state_of("both", "both")
    sent(state, "a", 0, 0.0, work_s=queue_s)
    sent(state, "b", 1, 0.0, work_s=queue_s + 0.3)
    # Waiting takes longer than computing what the other has; but then others wait for that.
    assert make_policy("inlay").choose(request(3000), matches(0, 100), state, 0.0).prefill == chosen


def test_inlay_asks_for_a_second_holder_of_a_hot_prefix_ahead_of_need() -> None:
    policy = make_policy("inlay")
    state = state_of("both", "both", "both", copies=True)
    digests = bytes(16 * 400)
    copies = []
    for step in range(200):
        now_s = step * 0.05
        decision = policy.choose(request(6800, digests=digests), matches(0, 400, 0), state, now_s)
        if decision.replicate is not None:
            copies.append((now_s, decision.replicate))
    assert copies
    first_s, copy = copies[0]
    assert (copy.source, copy.first_block, copy.num_blocks) == (1, 0, 400)
    assert first_s < 5.0
    gaps = np.diff([at_s for at_s, _ in copies])
    assert (gaps >= 2.0 - 1e-9).all()  # not asked for again and again while it is on its way


def test_inlay_leaves_the_turns_of_a_conversation_where_they_are() -> None:
    policy = make_policy("inlay")
    state = state_of("both", "both", copies=True)
    for turn in range(1, 100):
        digests = b"".join(i.to_bytes(16, "little") for i in range(4 * turn + 4))
        decision = policy.choose(
            request(64 * turn + 100, digests=digests), matches(4 * turn, 0), state, turn * 0.1
        )
        assert decision.replicate is None and decision.prefill == 0


def test_inlay_remembers_what_was_sent_and_not_what_was_refused() -> None:
    policy, state = make_policy("inlay"), state_of("both", pages=10)
    digests = b"".join(i.to_bytes(16, "little") for i in range(100))
    asked = request(1600, digests=digests)

    def lost_s() -> float:
        decision = policy.choose(asked, matches(0), state, 0.0)
        assert decision.terms is not None
        return float(decision.terms.columns["lost_s"][0])

    assert lost_s() == 0
    assert lost_s() == 0  # nobody has it since nobody was to compute it
    for now_s in (0.0, 1.0):
        policy.sent(asked, policy.choose(asked, matches(0), state, now_s), now_s)
    assert lost_s() > 0


def test_a_prompt_that_the_decode_instance_has_is_not_divided(policy: Policy) -> None:
    state = state_of("prefill", "decode")
    decision = policy.choose(request(1600), matches(100, 100), state, 0.0)
    assert (decision.prefill, decision.decode, decision.copy) == (1, 1, None)
    assert decision.reused_blocks == 99
    chosen, other = explain(decision, ["p", "d"])
    assert (chosen["instance"], chosen["chosen"]) == ("d", True)
    assert (other["instance"], other["chosen"]) == ("p", False)


@pytest.mark.parametrize("name", ["inlay", "kv_centric"])
def test_nothing_is_copied_where_as_much_is(name: str) -> None:
    policy, state = make_policy(name), state_of("both", "both", "both", copies=True)
    for slot in range(3):
        sent(state, str(slot), slot, 0.0, work_s=2.0 - slot / 7)
    for num_tokens in range(1700, 3000, 13):  # whatever rounding makes of it
        decision = policy.choose(request(num_tokens), matches(100, 100, 100), state, 0.0)
        assert decision.copy is None
