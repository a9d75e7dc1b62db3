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
    state = state_of("both", "both", "decode")
    state.drain(1)
    decision = policy.choose(request(), matches(1, 2, 3), state, 0.0)
    rows = explain(decision, ["a", "b", "c"])
    assert rows[0]["instance"] == "a" and rows[0]["chosen"] is True
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
