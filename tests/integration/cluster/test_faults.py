"""Every kind of process is killed once under load; `tools/soak cluster` does so at length."""

from collections.abc import Iterator

import pytest

from tests.integration.cluster.faults import FAULTS, Faulted, faulted


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulted]:
    with faulted(tmp_path_factory.mktemp("faults"), seed=1) as found:
        yield found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_killed_process_spoils_no_answer(one: Faulted, fault: str) -> None:
    assert one.run(fault, seed=2)["back_s"] > 0
