"""The families that a collector makes of engines' counts."""

from dataclasses import dataclass, field
from typing import cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inlay.core import metrics as names
from inlay.core.errors import EngineClosedError
from inlay.transfer import PathInfo, PortCounts, TransferEngine
from inlay.transfer.metrics import TransferCollector

BUCKETS = len(names.TRANSFER_LATENCY.buckets) + 1


def path(**changed: object) -> PathInfo:
    values = {
        "peer": "10.0.0.1:17001",
        "transport": "tcp",
        "name": "tcp 10.0.0.1:17001",
        "state": "ready",
        "reason": "",
        "read_bytes": 0,
        "written_bytes": 0,
        "slices": 0,
        "inflight_bytes": 0,
        "inflight_slices": 0,
        "retries": {},
        "predicted_s": 0.0,
        "measured_s": 0.0,
        "error_s": 0.0,
        "bandwidth_gbs": None,
        "latencies": (0,) * BUCKETS,
        "latency_sum_s": 0.0,
        "error_sum_s": 0.0,
        **changed,
    }
    return PathInfo(**values)  # type: ignore[arg-type]


def counts(**buckets: int) -> tuple[int, ...]:
    """Latency counts by bucket, such as _3=2."""
    return tuple(buckets.get(f"_{i}", 0) for i in range(BUCKETS))


@dataclass(eq=False)
class Counted:
    """An engine as far as the collector knows one."""

    all: list[PathInfo]
    port: PortCounts = field(default_factory=lambda: PortCounts(refused={}, fenced_lanes=0))
    closed: bool = False

    def paths(self) -> list[PathInfo]:
        if self.closed:
            raise EngineClosedError("the transfer engine is closed")
        return self.all

    def port_counts(self) -> PortCounts:
        return self.port


def scrape(*engines: Counted) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(TransferCollector(*(cast(TransferEngine, engine) for engine in engines)))
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = ",".join(v for k, v in sorted(sample.labels.items()) if k != "peer")
            assert f"{sample.name} {labels}" not in found
            found[f"{sample.name} {labels}".rstrip()] = sample.value
    return found


def test_paths_of_one_transport_are_added() -> None:
    engine = Counted(
        [
            path(name="a", read_bytes=5, latencies=counts(_0=1, _4=2), latency_sum_s=0.5,
                 error_sum_s=0.25, retries={"peer_unreachable": 2}),
            path(name="b", written_bytes=7, inflight_bytes=9, latencies=counts(_25=3),
                 latency_sum_s=60.0, retries={"peer_unreachable": 1, "cancelled": 4}),
            path(name="c", transport="shm", read_bytes=11),
        ]
    )  # fmt: skip
    found = scrape(engine)
    assert found["inlay_transfer_bytes_total read,tcp"] == 5
    assert found["inlay_transfer_bytes_total write,tcp"] == 7
    assert found["inlay_transfer_bytes_total read,shm"] == 11
    assert found["inlay_transfer_inflight_bytes tcp"] == 9
    assert found["inlay_transfer_retries_total peer_unreachable,tcp"] == 3
    assert found["inlay_transfer_retries_total cancelled,tcp"] == 4
    assert found["inlay_transfer_prediction_error_seconds_total tcp"] == 0.25
    # 2^i us; buckets count all that took less, too.
    assert found["inlay_transfer_latency_seconds_bucket 1e-06,tcp"] == 1
    assert found["inlay_transfer_latency_seconds_bucket 8e-06,tcp"] == 1
    assert found["inlay_transfer_latency_seconds_bucket 1.6e-05,tcp"] == 3
    assert found["inlay_transfer_latency_seconds_bucket 16.777216,tcp"] == 3
    assert found["inlay_transfer_latency_seconds_bucket +Inf,tcp"] == 6
    assert found["inlay_transfer_latency_seconds_count tcp"] == 6
    assert found["inlay_transfer_latency_seconds_sum tcp"] == 60.5


@pytest.mark.parametrize("order", [1, -1])
def test_a_lost_peer_and_its_next_connection_are_one_path(order: int) -> None:
    both = [path(state="closed", reason="peer_died", read_bytes=1), path(read_bytes=2)]
    found = scrape(Counted(both[::order]))
    name = "tcp 10.0.0.1:17001"
    assert found[f"inlay_transfer_path_state {name},ready,tcp"] == 1
    assert found[f"inlay_transfer_path_state {name},closed,tcp"] == 0
    assert found["inlay_transfer_bytes_total read,tcp"] == 3


def test_engines_are_added_and_closed_ones_left_out() -> None:
    port = PortCounts(refused={"token": 2, "garbage": 0}, fenced_lanes=3)
    one, two = Counted([path(read_bytes=1)], port), Counted([path(read_bytes=2)], port)
    gone = Counted([path(read_bytes=4)], port, closed=True)
    found = scrape(one, two, gone)
    assert found["inlay_transfer_bytes_total read,tcp"] == 3
    assert found["inlay_transfer_refused_connections_total token"] == 4
    assert found["inlay_transfer_refused_connections_total garbage"] == 0
    assert found["inlay_transfer_fenced_lanes_total"] == 6


def test_every_defined_metric_is_exported() -> None:
    engine = Counted(
        [path(retries={"cancelled": 1})], PortCounts(refused={"crowd": 1}, fenced_lanes=0)
    )
    exported = {family for family in scrape(engine)}
    for metric in names.TRANSFER_METRICS:
        assert any(name.startswith(metric.name) for name in exported), metric.name
