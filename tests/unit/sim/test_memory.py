"""Memory behind the GPUs of planned fleets: sizes and prices by hand, files that others read."""

from pathlib import Path

import pytest

from inlay.cluster.deployment_file import read_deployment
from inlay.core.cache_parts import cache_parts
from inlay.core.hardware import machine_named
from inlay.core.units import parse_bytes
from inlay.sim.planner.budget import best_for
from inlay.sim.planner.candidates import Candidate
from inlay.sim.planner.demand import demand_of
from inlay.sim.planner.files import deployment_toml, scenario_toml
from inlay.sim.planner.fleet import Fleet, Mix, neighbours, simulate
from inlay.sim.planner.memory import MEMORIES, Memory, host_bytes, node_bytes
from inlay.sim.planner.record import as_dict
from inlay.sim.planner.search import mixes_of
from inlay.sim.scenario_file import read_scenario
from inlay.sim.simulation import Simulation
from inlay.sim.studies import fleets
from inlay.sim.trace import Trace
from tests.unit.sim.test_planner import ATTAIN, MODEL, SLO, offered, trace
from tests.unit.sim.test_scenario_file import shape_named

__all__ = ["trace"]  # a fixture

DISK, NODE = (cache_parts()[name] for name in ("disk", "node"))


@pytest.fixture(scope="module")
def two(trace: Trace) -> tuple[Candidate, ...]:
    """One for prompts and one for tokens, of two GPUs each."""
    found = [
        one for one in offered(demand_of(lambda: [trace], SLO), "h800", "h20") if one.gpus == 2
    ]
    prefill = next(one for one in found if one.role == "prefill" and one.hardware == "h800")
    decode = next(one for one in found if one.role == "decode" and one.hardware == "h20")
    return prefill, decode


def test_every_figure_of_parts_has_its_source() -> None:
    for part in cache_parts().values():
        assert {"size_gb", "read_gbs", "write_gbs", "price_usd"} <= part.sources.keys()


def test_sizes_and_prices_by_hand(two: tuple[Candidate, ...]) -> None:
    plain = Fleet(Mix(two), (3, 1))
    assert plain.hosts == 1.0 and plain.cache_tb == 0.0  # four instances of a quarter
    # Two sockets of 512 GB for eight GPUs, less what processes take.
    assert 0.9 * 256e9 < host_bytes(two[0]) < 256e9
    disks = plain.with_memory(Memory(disks=4))
    assert disks.price_usd - plain.price_usd == pytest.approx(4 * DISK.price_usd)
    assert disks.cache_tb == pytest.approx(4 * DISK.size_gb / 1e3)
    nodes = plain.with_memory(Memory(shared=True, nodes=2))
    assert nodes.price_usd - plain.price_usd == pytest.approx(2 * NODE.price_usd)
    store = nodes.store
    assert store is not None and plain.store is None and disks.store is None
    assert parse_bytes(store.memory) == 4 * host_bytes(two[0]) + 2 * node_bytes()


def test_tiers_of_scenarios(two: tuple[Candidate, ...]) -> None:
    def kinds(memory: Memory) -> list[tuple[bool, bool, bool]]:
        scenario = Fleet(Mix(two, memory), (1, 1)).scenario(SLO)
        store = scenario.store is not None
        return [
            (kind.instance.host is not None, kind.instance.disk is not None, store)
            for kind in scenario.kinds
        ]

    assert kinds(Memory(hosts=False)) == [(False, False, False)] * 2
    assert kinds(Memory()) == [(True, False, False)] * 2
    assert kinds(Memory(disks=1)) == [(True, True, False)] * 2
    assert kinds(Memory(shared=True)) == [(False, False, True)] * 2


def test_what_has_no_less() -> None:
    assert Memory(disks=4).has_no_less(Memory())
    assert Memory().has_no_less(Memory())
    assert not Memory().has_no_less(Memory(disks=4))
    assert Memory(shared=True, nodes=2).has_no_less(Memory(shared=True, nodes=1))
    assert not Memory(shared=True, nodes=2).has_no_less(Memory())
    assert not Memory().has_no_less(Memory(hosts=False))


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_files_say_the_same_memory(
    memory: Memory, two: tuple[Candidate, ...], trace: Trace, tmp_path: Path
) -> None:
    fleet = Fleet(Mix(two, memory), (3, 2))
    file = tmp_path / "fleet.toml"
    file.write_text(scenario_toml(fleet, MODEL, SLO, trace.block_tokens))
    scenario = read_scenario(file, shape_named, machine_named)
    planned = fleet.scenario(SLO)
    assert scenario.store == planned.store
    for kind, other in zip(scenario.kinds, planned.kinds, strict=True):
        assert (kind.instance.host, kind.instance.disk) == (
            other.instance.host,
            other.instance.disk,
        )
    again = Simulation(scenario).run(trace)
    assert again.meets(SLO).mean() == simulate(fleet, demand_of(lambda: [trace], SLO)).kept
    file.write_text(deployment_toml(fleet, MODEL, SLO))
    deployment = read_deployment(file)
    if memory.shared:
        assert deployment.store is not None and fleet.store is not None
        sizes = [parse_bytes(node.memory) for node in deployment.store.nodes.values()]
        assert sum(sizes) == parse_bytes(fleet.store.memory)
        hosts = {group.host for group in deployment.instances.values()}
        assert len(sizes) == len(hosts) + memory.nodes
    else:
        assert deployment.store is None
        for name, group in deployment.instances.items():
            cache = deployment.engine_of(name, 0)["cache"]
            assert parse_bytes(cache["host"]) == host_bytes(two[0])
            assert ("disk" in cache) == (memory.disks > 0), group


def test_one_instance_on_this_machine_shares_with_nobody(
    two: tuple[Candidate, ...], tmp_path: Path
) -> None:
    file = tmp_path / "one.toml"
    both = Fleet(Mix((two[0],), Memory(shared=True)), (1,))
    file.write_text(deployment_toml(both, MODEL, SLO).replace('"prefill"', '"both"'))
    deployment = read_deployment(file)
    assert deployment.launcher == "local" and deployment.store is not None
    assert [node.host for node in deployment.store.nodes.values()] == [""]


def test_neighbours_tell_what_a_part_is_worth(two: tuple[Candidate, ...], trace: Trace) -> None:
    demand = demand_of(lambda: [trace], SLO)
    best = simulate(Fleet(Mix(two, Memory(shared=True, nodes=1)), (1, 1)), demand)
    near = neighbours(best, demand)
    tb = sorted(one.fleet.cache_tb - best.fleet.cache_tb for one in near)
    assert tb == pytest.approx([-2.048, 0.0, 0.0, 2.048])
    plain = simulate(Fleet(Mix(two), (1, 1)), demand)
    assert neighbours(plain, demand)[-1].fleet.mix.memory == Memory(disks=1)


def test_records_say_what_is_bought(trace: Trace) -> None:
    demand = demand_of(lambda: [trace], SLO)
    mixes = mixes_of(offered(demand, "h800"), [Memory(shared=True, nodes=1)])
    found = best_for("ttft", mixes, demand, attain=ATTAIN, budget_usd=400_000, most=1)
    near = neighbours(found.plans[0], demand)
    record = as_dict(found, near, None, ATTAIN)
    assert record["plans"][0]["cache_tb"] == pytest.approx(2.048)
    assert record["plans"][0]["memory"]["nodes"] == 1
    assert NODE.title in record["plans"][0]["fleet"]
    assert any(NODE.title in line for line in record["assumptions"])
    assert {"host", "disk", "store"} & record["plans"][0]["tiers"].keys()


def test_the_study_of_fleets(trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    found = {one.name: one.value for one in fleets.measure("t", trace, gpus="h20", memory="hosts")}
    told = capsys.readouterr().out
    assert "Assumptions:" in told and "H20" in told
    assert found["rate"] >= 0.0
    if found["rate"]:
        assert found["price_usd"] <= fleets.BUDGET_USD and found["cache_tb"] == 0.0
