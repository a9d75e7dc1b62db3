"""A master's counts as Prometheus shows them, and the table for people."""

import io

from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from inlay.core.metrics import STORE_COUNTS
from inlay.serve.store.status import StatusTable
from inlay.store.metrics import MasterCollector
from inlay.store.survey import NodeState, Survey

NODE = NodeState(
    name="a",
    host="h",
    address="127.0.0.1:7",
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
    Console(file=out, width=120).print(table.render(survey, "127.0.0.1:50051", now_s))
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


def test_the_hit_rate_is_of_keys_that_were_looked_for() -> None:
    assert SURVEY.hit_rate == 9 / 16
    empty = Survey(epoch=1, recovering=False, objects=0, counters={}, nodes=())
    assert empty.hit_rate is None


def test_the_table_has_nodes_and_rates() -> None:
    table = StatusTable()
    first = drawn(SURVEY, table, 10.0)
    assert "epoch 3" in first and "hit rate 56.2 %" in first and "50.0 %" in first
    assert "puts/s" not in first
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
