"""Masters elected through a real etcd."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inlay.core.errors import EndpointError
from inlay.core.etcd import Etcd
from inlay.store import election
from inlay.store.address import Cluster, parse_cluster
from inlay.store.election import LEASE_S, Election, boot_time, look_up_master
from tests.support.directories import Service, free_port, missing_program, running
from tests.support.pause import go_on, pause

ROOT = Path(__file__).parents[3]
NEVER = threading.Event()
CANDIDATE = """
import sys, threading
from inlay.core.errors import EndpointError
from inlay.store.address import parse_cluster
from inlay.store.election import RENEW_S, Election, boot_time
election = Election(parse_cluster(sys.argv[1]), sys.argv[2])
reign = election.begin(threading.Event())
until = election.renew(["n"])
print(reign.epoch, flush=True)
while until is not None and boot_time() < until:
    try:
        until = election.renew(["n"])
    except EndpointError:  # it was stopped while it asked
        continue
    threading.Event().wait(RENEW_S)
print("over", flush=True)
"""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Service]:
    if reason := missing_program("etcd"):
        pytest.skip(reason)
    with running("etcd", tmp_path) as service:
        yield service


@pytest.fixture
def cluster(etcd: Service) -> Cluster:
    return parse_cluster(f"{etcd.url}/test")


def candidate(cluster: Cluster, address: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CANDIDATE, str(cluster), address],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def test_a_killed_master_is_replaced_within_its_lease(cluster: Cluster) -> None:
    first = candidate(cluster, "a:1")
    try:
        assert line(first) == "1"
        assert look_up_master(cluster, cluster.etcd()) == "a:1"
        standby = Election(cluster, "b:1")
        taken = threading.Event()
        waiting = threading.Thread(target=lambda: (standby.begin(NEVER), taken.set()))
        waiting.start()
        time.sleep(1)
        assert not taken.is_set()
        first.kill()
        killed = time.monotonic()
        waiting.join(10)
        noticed_s = time.monotonic() - killed
        assert noticed_s < LEASE_S + 1, noticed_s  # 2.2 s where processors are free
        assert look_up_master(cluster, cluster.etcd()) == "b:1"
        assert standby.renew([]) is not None
    finally:
        end(first)


def test_a_master_that_slept_beyond_its_lease_learns_that_it_is_none(cluster: Cluster) -> None:
    first = candidate(cluster, "a:1")
    try:
        assert line(first) == "1"
        pause(first.pid)
        reign = Election(cluster, "b:1").begin(NEVER)
        assert reign is not None and (reign.epoch, reign.nodes) == (2, ("n",))
        go_on(first.pid)
        assert line(first) == "over"
    finally:
        end(first)


def test_a_master_that_leaves_is_replaced_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "LEASE_S", 60.0)
    first, second = Election(cluster, "a:1"), Election(cluster, "b:1")
    assert first.begin(NEVER) is not None
    first.end()
    assert look_up_master(cluster, cluster.etcd()) is None
    began = time.monotonic()
    reign = second.begin(NEVER, above=1000)
    assert reign is not None and reign.epoch == 1001
    assert time.monotonic() - began < 30


def test_without_etcd_a_master_is_told_so_and_serves_only_as_long_as_it_was_promised(
    etcd: Service, cluster: Cluster
) -> None:
    master = Election(cluster, "a:1")
    reign = master.begin(NEVER)
    assert reign is not None and 0 < reign.until - boot_time() <= LEASE_S
    etcd.stop()
    with pytest.raises(EndpointError, match=f"etcd://127.0.0.1:{etcd.port} does not answer"):
        master.renew([])
    stop = threading.Event()
    waiting = threading.Thread(target=lambda: Election(cluster, "b:1").begin(stop))
    waiting.start()
    stop.set()
    waiting.join(5)
    assert not waiting.is_alive()


def test_members_that_are_down_are_passed_over(etcd: Service) -> None:
    dead = free_port()
    both = Etcd([("127.0.0.1", dead), ("127.0.0.1", etcd.port)])
    assert both.put_if("k", b"v", revision=0, timeout_s=2)[0]
    held = both.get("k", timeout_s=2)
    assert held is not None and held.value == b"v"
    assert both.put_if("k", b"w", revision=0, timeout_s=2) == (False, held)
    with pytest.raises(EndpointError, match="does not answer"):
        Etcd([("127.0.0.1", dead)]).get("k", timeout_s=2)
