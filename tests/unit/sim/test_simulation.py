"""A trace through policy, index, state and world."""

from dataclasses import replace

import numpy as np
import pytest

from inlay.cluster.admission import AdmissionConfig
from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError
from inlay.sim.results import Results
from inlay.sim.scenario import Kind, Loss, RoleChange, Scenario
from inlay.sim.simulation import Simulation
from inlay.sim.step_time import StepTime
from inlay.sim.trace import Trace
from inlay.sim.world import InstanceConfig

pytest.importorskip("inlay._native")

PAGE = 16
ENGINE = {
    "step_time": StepTime.fitted([8e-3, 4e-5, 2e-9, 8e-3, 2e-5, 1e-8]),
    "num_pages": 600,
    "page_tokens": PAGE,
}
LINKS = {"token_bytes": 1e5, "layers": 32, "out_bytes_per_s": 1e10, "in_bytes_per_s": 1e10}


def sessions(requests=300, each_s=0.05, seed=0):
    """Chats of which each turn continues the one before."""
    rng = np.random.default_rng(seed)
    lengths, chains, turns = [], [], {}
    for number in range(requests):
        chat = int(rng.integers(requests // 6))
        blocks, tokens = turns.get(chat, ([], 0))
        tokens += int(rng.integers(30, 400))
        blocks = blocks[: tokens // PAGE]
        count = -(-tokens // PAGE)
        blocks = blocks + [number << 20 | i for i in range(len(blocks), count)]
        turns[chat] = (blocks[: tokens // PAGE], tokens)
        lengths.append(tokens)
        chains.append(blocks)
    return Trace(
        arrival_s=np.cumsum(rng.exponential(each_s, requests)),
        input_tokens=np.array(lengths),
        output_tokens=rng.integers(1, 60, requests),
        block_starts=np.cumsum([0, *map(len, chains)]),
        blocks=np.array([block for chain in chains for block in chain], np.uint64),
        block_tokens=PAGE,
    )


def scenario(count=3, split=False, engine=None, linked=False, **changes):
    one = InstanceConfig(**ENGINE | (LINKS if split or linked else {}) | (engine or {}))
    kinds = (
        (Kind(instance=one, role="prefill", count=2), Kind(instance=one, role="decode"))
        if split
        else (Kind(instance=one, count=count),)
    )
    return Scenario(kinds=kinds, **changes)


@pytest.mark.parametrize("policy", ["round_robin", "kv_centric", "inlay"])
@pytest.mark.parametrize("split", [False, True])
def test_all_requests_are_served_and_a_seed_repeats_them(policy, split):
    trace = sessions()
    one = scenario(split=split, policy=policy, engine={"noise": 0.1}, seed=3, learn=True)
    results = Simulation(one).run(trace)
    assert results.finished.all() and not results.refusals
    assert (results.ttft_s > 0).all() and (results.end_s >= results.first_s).all()
    assert (results.cached_tokens < trace.input_tokens).all()
    again = Simulation(one).run(trace)
    for name in ("first_s", "end_s", "tbt_s", "decode"):
        assert np.array_equal(getattr(results, name), getattr(again, name))
    other = Simulation(scenario(split=split, policy=policy, engine={"noise": 0.1}, seed=4))
    assert not np.array_equal(results.end_s, other.run(trace).end_s)
    if split:
        assert (results.prefill != results.decode).mean() > 0.2 and results.sent_bytes[:2].all()


def test_who_knows_blocks_finds_more_of_them():
    trace = sessions()
    hits = {
        policy: Simulation(scenario(policy=policy)).run(trace).hit_ratio
        for policy in ("round_robin", "local_cache_aware", "kv_centric")
    }
    assert hits["round_robin"] + 0.1 < min(hits["local_cache_aware"], hits["kv_centric"])
    assert max(hits.values()) <= trace.reusable_share()


def test_parts_of_a_trace_give_what_the_whole_gives():
    trace = sessions()
    parts = (trace.select(range(start, min(start + 70, 300))) for start in range(0, 300, 70))
    whole = Simulation(scenario(policy="kv_centric")).run(trace)
    in_parts = Simulation(scenario(policy="kv_centric")).run(parts)
    for name in ("arrival_s", "first_s", "end_s", "prefill", "cached_tokens", "output_tokens"):
        assert np.array_equal(getattr(whole, name), getattr(in_parts, name))
    for name in ("busy_s", "steps", "sent_bytes"):
        assert np.allclose(getattr(whole, name), getattr(in_parts, name))
    nothing = Simulation(scenario()).run([])
    assert not len(nothing.end_s) and nothing.duration_s == nothing.hit_ratio == 0.0


def test_parts_come_when_all_of_them_is_over():
    trace = sessions()
    asked = []

    def parts():
        for start in range(0, 300, 50):
            asked.append(start)
            yield trace.select(range(start, start + 50))

    slo = SloClass(ttft_s=0.2)
    one = scenario(slo=slo, admission=AdmissionConfig(mode="predicted"), linked=True)
    came = []
    for part in Simulation(one).replay(parts()):
        came.append((len(asked), part))
        assert len(part.arrival_s) == 50 and not np.isnan(part.end_s[part.finished]).any()
        assert sorted(part.refusals) == np.flatnonzero(~part.finished).tolist()
    assert [at for at, _ in came][:2] == [2, 3], "as soon as the part behind it has come"
    whole = Simulation(one).run(trace)
    joined = Results.joined([part for _, part in came])
    assert joined.refusals == whole.refusals
    assert np.array_equal(joined.end_s, whole.end_s, equal_nan=True)
    assert np.array_equal(joined.expected_ttft_s, whole.expected_ttft_s, equal_nan=True)


def test_groups_of_parts_are_numbered_as_in_the_whole():
    first, second = sessions(20), sessions(20)
    first = replace(first, groups=("a", "b"), group=[0, 1] * 10)
    second = replace(second, groups=("b", "c"), group=[0, 1] * 10)
    second = replace(second, arrival_s=second.arrival_s + first.duration_s)
    results = Simulation(scenario()).run([first, second])
    assert results.groups == ("a", "b", "c")
    assert results.group.tolist() == [0, 1] * 10 + [1, 2] * 10


def test_the_state_is_empty_in_the_end_and_believes_what_is_true():
    simulation = Simulation(scenario(learn=True))
    results = simulation.run(sessions())
    state = simulation.state
    assert not state.live and not state.rows.any() and not state.coming_rows.any()
    assert state.outputs == pytest.approx(float(results.output_tokens.mean()), rel=0.2)
    true = ENGINE["step_time"].parts[0][0][:6]
    # What is never seen alone, the contexts' share, is not as well known as the rest.
    assert state.token_s[0] == pytest.approx(true[1] + true[0] / 512, rel=0.1)


def test_what_would_miss_its_objectives_is_refused():
    trace = sessions(each_s=0.005)
    slo = SloClass(ttft_s=0.5)
    taken = Simulation(scenario(slo=slo)).run(trace)
    results = Simulation(scenario(slo=slo, admission=AdmissionConfig(mode="predicted"))).run(trace)
    refused = ~results.finished
    assert 20 < refused.sum() < 290
    assert sorted(results.refusals) == np.flatnonzero(refused).tolist()
    assert np.isnan(results.first_s[refused]).all()
    kept, kept_by_all = (np.mean(one.ttft_s[one.finished] <= 0.5) for one in (results, taken))
    assert kept > 0.8 and kept > kept_by_all + 0.25


@pytest.mark.parametrize("policy", ["kv_centric", "inlay"])
def test_blocks_are_copied_where_a_decision_asks_for_it(policy):
    trace = sessions(each_s=0.02)
    # All begin with the same long document, which one has computed before the others come.
    document = np.arange(200, dtype=np.uint64) + (1 << 50)
    chains = [np.concatenate((document, trace.chain(number))) for number in range(len(trace))]
    trace = replace(
        trace,
        arrival_s=trace.arrival_s + np.where(trace.arrival_s > trace.arrival_s[0], 5.0, 0.0),
        input_tokens=trace.input_tokens + 200 * PAGE,
        block_starts=np.cumsum([0, *map(len, chains)]),
        blocks=np.concatenate(chains),
    )
    one = scenario(policy=policy, linked=True, engine={"num_pages": 4000})
    simulation = Simulation(one)
    results = simulation.run(trace)
    assert results.finished.all() and results.copied_blocks >= 200
    assert results.sent_bytes.sum() >= 200 * PAGE * LINKS["token_bytes"]
    assert not simulation.state.sending_bytes.any() and not simulation.state.live
    without = Simulation(replace(one, copies=False)).run(trace)
    assert without.finished.all() and not without.copied_blocks and not without.sent_bytes.any()


def test_best_effort_makes_room_and_goes_on():
    trace = sessions(each_s=0.02)
    groups = np.arange(len(trace)) % 2
    trace = replace(trace, group=groups, groups=("chat", "batch"), output_tokens=groups * 100 + 20)
    classes = {"chat": SloClass(tbt_s=1.0), "batch": SloClass(name="batch", priority=1)}
    one = scenario(
        groups=classes,
        engine={"max_running": 8, "num_pages": 2000},
        admission=AdmissionConfig(mode="early"),
    )
    simulation = Simulation(one)
    results = simulation.run(trace)
    chats = groups == 0
    moved = results.preemptions > 0
    assert moved[~chats].sum() > 10 and not moved[chats].any()
    assert results.finished[~chats].all() and not simulation.state.live
    assert (results.longest_gap_s[moved] > 0).all()
    # Rows that best effort has are not what refuses chats.
    same = Simulation(replace(one, groups={"chat": classes["chat"]})).run(trace)
    assert results.finished[chats].sum() > 1.5 * same.finished[chats].sum()


@pytest.mark.parametrize("split", [False, True])
def test_requests_of_a_lost_instance_go_on_elsewhere(split):
    trace = sessions(each_s=0.02)
    # The second one comes back; the first is lost while the prompts of others are computed there.
    losses = (Loss(at_s=1.5, slot=0), Loss(at_s=2.0, slot=1, back_s=1.0))
    one = scenario(split=split, losses=losses, policy="kv_centric")
    simulation = Simulation(one)
    results = simulation.run(trace)
    assert results.finished.all() and not simulation.state.live
    assert not simulation.state.rows.any() and not simulation.state.coming_rows.any()
    late = trace.arrival_s > 1.6
    assert not (results.prefill[late] == 0).any() and (results.prefill[~late] == 0).any()
    gone = late & (trace.arrival_s < 2.9) & (trace.arrival_s > 2.1)
    assert not (results.prefill[gone] == 1).any()
    assert (results.prefill[trace.arrival_s > 3.1] == 1).any()
    if not split:
        assert (results.preemptions > 0).sum() > 2
    whole = Simulation(replace(one, losses=())).run(trace)
    assert results.ttft_s.mean() > whole.ttft_s.mean()
    assert results.hit_ratio < whole.hit_ratio


def test_roles_change_at_their_times():
    changes = (
        RoleChange(at_s=3.0, slot=2, role="prefill"),
        RoleChange(at_s=3.0, slot=0, role="decode"),
    )
    trace = sessions(each_s=0.02)
    results = Simulation(scenario(split=True, role_changes=changes)).run(trace)
    early = trace.arrival_s < 3.0
    long = results.prefill != results.decode
    assert set(results.decode[early & long]) == {2} and set(results.decode[~early & long]) == {0}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"losses": (Loss(at_s=1.0, slot=3),)}, "slot must be below 3"),
        (
            {"losses": (Loss(at_s=1.0, slot=0), Loss(at_s=2.0, slot=0))},
            "lost before and is not back",
        ),
        ({"losses": (Loss(at_s=1.0, slot=0, back_s=0.0),)}, "cannot be back after 0 s"),
        ({"role_changes": (RoleChange(at_s=-1.0, slot=0, role="both"),)}, "a time from 0 on"),
    ],
)
def test_changes_that_cannot_be_are_refused(change, problem):
    with pytest.raises(ConfigError, match=problem):
        scenario(**change)


def test_roles_follow_the_work():
    requests, blocks = 1500, 125
    trace = Trace(
        arrival_s=np.arange(requests) * 0.04,
        input_tokens=np.full(requests, blocks * PAGE),
        output_tokens=np.full(requests, 3),
        block_starts=np.arange(requests + 1) * blocks,
        blocks=np.arange(requests * blocks, dtype=np.uint64),
        block_tokens=PAGE,
    )
    one = InstanceConfig(**ENGINE | LINKS)
    kinds = tuple(Kind(instance=one, role=role, count=2) for role in ("prefill", "decode"))
    slo = SloClass(ttft_s=1.0, tbt_s=0.1)
    fixed, auto = (
        Simulation(Scenario(kinds=kinds, slo=slo, roles=roles)).run(trace)
        for roles in ("fixed", "auto")
    )
    assert fixed.role_changes == 0 < auto.role_changes
    assert auto.finished.all() and auto.ttft_s.mean() < 0.7 * fixed.ttft_s.mean()


@pytest.mark.parametrize("at_s", [1.0, 1000.0])
def test_what_comes_when_all_is_over_is_told(at_s):
    one = scenario(losses=(Loss(at_s=at_s, slot=1, back_s=1.0),))
    simulation = Simulation(one)
    assert simulation.run(sessions(each_s=0.02)).finished.all()
    assert simulation.too_late == [loss for loss in one.losses if at_s > 999]


def test_what_is_believed_at_first_is_learned():
    true = ENGINE["step_time"].parts[0][0][:6]
    wrong = tuple(2 * seconds for seconds in true)
    one = scenario(learn=True)
    kinds = tuple(replace(kind, believed=wrong) for kind in one.kinds)
    for learn, times in ((True, 1), (False, 2)):
        simulation = Simulation(replace(one, kinds=kinds, learn=learn))
        simulation.run(sessions())
        expected_s = times * (true[1] + true[0] / 512)
        assert simulation.state.token_s[0] == pytest.approx(expected_s, rel=0.1)


def test_what_fits_nowhere_is_refused():
    trace = sessions(requests=30)
    results = Simulation(scenario(engine={"num_pages": 30})).run(trace)
    fits = trace.input_tokens + trace.output_tokens <= 30 * PAGE
    assert np.array_equal(results.finished, fits) and not fits.all()
    assert set(results.refusals.values()) == {"it does not fit on the instance that was chosen"}


def test_pages_are_the_blocks_of_the_trace():
    with pytest.raises(ConfigError, match="blocks of 16 tokens, the scenario pages of 32"):
        Simulation(scenario(engine={"page_tokens": 32})).run(sessions(requests=10))
    with pytest.raises(ConfigError, match="same page_tokens"):
        Scenario(
            kinds=(
                Kind(instance=InstanceConfig(**ENGINE)),
                Kind(instance=InstanceConfig(**ENGINE | {"page_tokens": 32})),
            )
        )
