"""Each fault of a store's processes, at two random times; `tools/soak store` has them 50 times."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.store.faults import ALONE, ELECTED, run
from tests.integration.store.fleet import Fleet
from tests.support.directories import missing_program, running

RUNS = 2


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("alone"), random.getrandbits(32)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def elected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if reason := missing_program("etcd"):
        pytest.skip(reason)
    folder: Path = tmp_path_factory.mktemp("elected")
    with (
        running("etcd", folder) as service,
        Fleet(folder, random.getrandbits(32), etcd=f"{service.url}/faults") as fleet,
    ):
        yield fleet


@pytest.mark.parametrize("name", ALONE)
def test_nothing_is_lost(alone: Fleet, name: str) -> None:
    for _ in range(RUNS):
        seed = random.SystemRandom().getrandbits(32)
        print(f"{name}: seed {seed}")
        run(alone, ALONE[name], seed)


@pytest.mark.parametrize("name", ELECTED)
def test_nothing_is_lost_where_masters_are_elected(elected: Fleet, name: str) -> None:
    for _ in range(RUNS):
        seed = random.SystemRandom().getrandbits(32)
        print(f"{name}: seed {seed}")
        run(elected, ELECTED[name], seed)
