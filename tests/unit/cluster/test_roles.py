"""When instances change their role, and when they had better not."""

import pytest

from inlay.cluster.policies import RoleConfig, RolePlanner
from inlay.cluster.slo import SloClass
from inlay.cluster.state import ClusterState
from inlay.core.errors import ConfigError
from tests.unit.cluster.clusters import state_of

ROLES = ("prefill", "prefill", "decode", "decode", "decode")


def planned(state: ClusterState, until_s: float, planner: RolePlanner | None = None) -> list[str]:
    """Changes until then, which are made."""
    planner = planner or RolePlanner(slo=SloClass(ttft_s=5.0))
    changes = []
    for tenth in range(int(until_s * 10)):
        change = planner.plan(state, tenth / 10)
        if change is not None:
            state.set_role(change.slot, change.role)
            changes.append(f"{tenth / 10:g} s: {change.slot} {change.role}")
    return changes


def test_long_queues_get_an_instance_more_that_has_least_to_do() -> None:
    state = state_of(*ROLES)
    state.free_at_s[:, :2] = 1000.0
    state.rows[:] = (0, 0, 5, 3, 4)
    assert planned(state, 6.0) == ["5 s: 3 prefill"]


def test_many_rows_get_one_too() -> None:
    state = state_of(*ROLES, "prefill")
    state.rows[2:5] = 64
    assert planned(state, 6.0) == ["5 s: 0 decode"]


def test_the_last_of_a_role_stays() -> None:
    state = state_of("prefill", "decode")
    state.free_at_s[:, 0] = 1000.0
    assert planned(state, 60.0) == []


def test_a_short_peak_changes_nothing() -> None:
    state = state_of(*ROLES)
    state.free_at_s[:, :2] = 5.0
    assert planned(state, 60.0) == []


def test_loads_that_are_near_each_other_do_not_swing() -> None:
    state = state_of(*ROLES)
    planner = RolePlanner(slo=SloClass(ttft_s=5.0))
    changes = 0
    for tick in range(1200):
        now_s = tick / 2
        # Waits and rows of a fixed amount of work, whoever does it.
        prefill = [slot for slot in state.slots if state.role(slot) == "prefill"]
        decode = [slot for slot in state.slots if state.role(slot) == "decode"]
        state.free_at_s[:] = now_s
        state.free_at_s[:, prefill] = now_s + 9.0 / len(prefill)
        state.rows[:] = 0
        state.rows[decode] = 150 / len(decode)
        change = planner.plan(state, now_s)
        if change is not None:
            state.set_role(change.slot, change.role)
            changes += 1
    assert changes <= 1


def test_instances_for_both_and_drained_ones_stay() -> None:
    state = state_of("prefill", "decode", "decode", "both")
    state.drain(1)
    state.free_at_s[:, 0] = 1000.0
    assert planned(state, 60.0) == []


def test_wrong_settings_are_told() -> None:
    with pytest.raises(ConfigError, match="gain must be between 0 and 1, got 1"):
        RoleConfig(gain=1)
