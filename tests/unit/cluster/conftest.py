"""A cluster for each test, which ends with it."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.unit.cluster.dispatching import Cluster


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def new(**config: Any) -> Cluster:
        made.append(Cluster(**config))
        return made[-1]

    yield new
    for cluster in made:
        cluster.close()
