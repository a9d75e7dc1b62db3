"""Each fault of a store's processes and disks, at two random times, where masters wait less than
they do by default; `tools/soak store` has them 50 times."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.store.faults import ALONE, DISKS, ELECTED, Fault, run
from tests.integration.store.fleet import SHORT, Fleet
from tests.support.directories import missing_program, running

RUNS = 2


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("alone"), random.getrandbits(32), times=SHORT) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def elected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if reason := missing_program("etcd"):
        pytest.skip(reason)
    folder: Path = tmp_path_factory.mktemp("elected")
    with (
        running("etcd", folder) as service,
        Fleet(folder, random.getrandbits(32), etcd=f"{service.url}/faults", times=SHORT) as fleet,
    ):
        yield fleet


@pytest.fixture(scope="module")
def with_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("disks")
    with Fleet(folder, random.getrandbits(32), disks=True, times=SHORT) as fleet:
        yield fleet


@pytest.mark.parametrize("name", ALONE)
def test_nothing_is_lost(alone: Fleet, name: str) -> None:
    repeat(alone, ALONE[name])


@pytest.mark.parametrize("name", ELECTED)
def test_nothing_is_lost_where_masters_are_elected(elected: Fleet, name: str) -> None:
    repeat(elected, ELECTED[name])


@pytest.mark.parametrize("name", DISKS)
def test_nothing_is_lost_where_disks_fail(with_disks: Fleet, name: str) -> None:
    repeat(with_disks, DISKS[name])


def repeat(fleet: Fleet, fault: Fault) -> None:
    for _ in range(RUNS):
        seed = random.SystemRandom().getrandbits(32)
        print(f"seed {seed}")
        run(fleet, fault, seed)
