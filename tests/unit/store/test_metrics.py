"""A master's counts as Prometheus shows them, and the table for people."""

import io
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from inlay.core.store_metrics import STORE_CLIENT_METRICS, STORE_COUNTS, STORE_DISK_METRICS
from inlay.serve.store.status import StatusTable
from inlay.store import Store
from inlay.store.figures import DiskFigures, Moved
from inlay.store.metrics import ClientCollector, MasterCollector, NodeCollector
from inlay.store.survey import NodeState, Survey

NODE = NodeState(
    name="a",
    host="h",
    address="10.120.130.140:41234",
    failure_domain="h",
    ready=True,
    draining=False,
    silent_ms=250,
    memory_bytes=1 << 30,
    memory_used_bytes=1 << 29,
    disk_bytes=0,
    disk_used_bytes=0,
    fragmentation=0.25,
)
SURVEY = Survey(
    epoch=3,
    recovering=False,
    objects=12,
    counters={
        "exists_keys": 10, "exists_found": 4, "located": 5, "missed": 1, "committed": 12,
        "clients": 2,
    },
    nodes=(NODE,),
)  # fmt: skip


def text(survey: Survey | None) -> str:
    registry = CollectorRegistry()
    registry.register(MasterCollector(lambda: survey))
    return generate_latest(registry).decode()


def drawn(survey: Survey, table: StatusTable, now_s: float = 0.0) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(table.render(survey, "127.0.0.1:50051", now_s))
    return out.getvalue()


def test_a_master_tells_its_counts() -> None:
    lines = text(SURVEY).splitlines()
    for line in (
        'inlay_store_role{role="master"} 1.0',
        'inlay_store_role{role="standby"} 0.0',
        "inlay_store_epoch 3.0",
        "inlay_store_objects 12.0",
        "inlay_store_committed_total 12.0",
        "inlay_store_clients 2.0",
        'inlay_store_node_used_bytes{node="a",tier="memory"} 5.36870912e+08',
        'inlay_store_node_silent_seconds{node="a"} 0.25',
    ):
        assert line in lines
    assert 'tier="disk"' not in text(SURVEY)
    assert all(metric.name in text(SURVEY) for metric in STORE_COUNTS)


def test_a_standby_tells_only_that_it_is_one() -> None:
    samples = [line for line in text(None).splitlines() if not line.startswith("#")]
    assert samples == [
        'inlay_store_role{role="master"} 0.0',
        'inlay_store_role{role="standby"} 1.0',
    ]


def test_a_node_tells_of_its_memory_and_disk() -> None:
    read = Moved(records=3, bytes=300, missing=1, seconds=0.5, calls=(2, 1, *[0] * 23, 1))
    written = Moved(records=7, bytes=700, missing=0, seconds=1.5, calls=(0,) * 26)
    disk = DiskFigures(
        objects=9, living_bytes=900, extents=16, free_extents=12, damaged=2, read=read,
        written=written,
    )  # fmt: skip
    lost = replace(NODE, ready=False, memory_used_bytes=1)
    survey = replace(SURVEY, nodes=(NODE, lost, replace(NODE, name="b")))
    registry = CollectorRegistry()
    registry.register(NodeCollector("a", lambda: survey, lambda: disk))
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'inlay_store_node_ready{node="a"} 1.0',
        'inlay_store_node_used_bytes{node="a",tier="memory"} 5.36870912e+08',
        'inlay_store_disk_objects{node="a"} 9.0',
        'inlay_store_disk_extents{node="a",state="used"} 4.0',
        'inlay_store_disk_damaged_total{node="a"} 2.0',
        'inlay_store_disk_moved_bytes_total{node="a",op="write"} 700.0',
        'inlay_store_disk_missing_total{node="a",op="read"} 1.0',
        'inlay_store_disk_seconds_bucket{le="2e-06",node="a",op="read"} 3.0',
        'inlay_store_disk_seconds_bucket{le="+Inf",node="a",op="read"} 4.0',
        'inlay_store_disk_seconds_sum{node="a",op="write"} 1.5',
    ):
        assert line in lines, line
    assert not any('node="b"' in line for line in lines)
    assert all(any(metric.name in line for line in lines) for metric in STORE_DISK_METRICS)


def test_clients_tell_what_they_did() -> None:
    registry = CollectorRegistry()
    with Store.embedded(memory="4MiB") as first, Store.embedded(memory="4MiB") as second:
        registry.register(ClientCollector(first, second))
        first.put_many(["a", "b"], [b"1" * 1000, b"2" * 500])
        first.put("a", b"3")
        second.upsert("a", b"4" * 100)
        assert first.get_many(["a", "b", "none"]) == [b"1" * 1000, b"2" * 500, None]
        assert first.get("b") == b"2" * 500
        with first.view("a") as memory:
            assert len(memory) == 1000
        first.upsert("a", b"5" * 10)
        assert first.get_or_none("a") == b"5" * 10
        lines = generate_latest(registry).decode().splitlines()
    for line in (
        "inlay_store_client_stored_total 4.0",
        "inlay_store_client_stored_bytes_total 1610.0",
        "inlay_store_client_kept_total 1.0",
        "inlay_store_client_read_total 5.0",
        "inlay_store_client_read_bytes_total 3010.0",
        "inlay_store_client_absent_total 1.0",
        "inlay_store_client_damaged_total 0.0",
    ):
        assert line in lines, line
    assert all(any(metric.name in line for line in lines) for metric in STORE_CLIENT_METRICS)
    figures = first.figures()
    assert figures.known + figures.asked >= 6 and figures.asked >= 1
    assert second.figures().read == 0


def test_the_hit_rate_is_of_keys_that_were_looked_for() -> None:
    assert SURVEY.hit_rate == 9 / 16
    empty = Survey(epoch=1, recovering=False, objects=0, counters={}, nodes=())
    assert empty.hit_rate is None


def test_the_table_has_nodes_and_rates() -> None:
    table = StatusTable()
    first = drawn(SURVEY, table, 10.0)
    assert "epoch 3" in first and "hit rate 56.2 %" in first and "50.0 %" in first
    assert NODE.address in first and "puts/s" not in first
    later = Survey(
        epoch=3,
        recovering=True,
        objects=32,
        counters={**SURVEY.counters, "committed": 32, "located": 45},
        nodes=(),
    )
    second = drawn(later, table, 12.0)
    assert "10 puts/s, 20 look-ups/s" in second
    assert "learning what nodes hold" in second and "inlay store node --master" in second
