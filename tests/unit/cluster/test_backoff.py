"""How long a process waits before it is started again."""

import pytest

from inlay.cluster.backoff import Backoff, BackoffConfig
from inlay.core.errors import ConfigError


def waits(*ran_s: float) -> list[float]:
    backoff = Backoff(BackoffConfig(first_s=0.1, most_s=1.0, ready_most_s=0.3, well_s=3.0))
    return [backoff.after(one) for one in ran_s]


def test_who_never_is_ready_waits_longer_each_time() -> None:
    assert waits(0, 0, 0, 0, 0, 0) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_who_had_been_ready_is_back_soon_however_often_it_ends() -> None:
    assert waits(1, 1, 1, 1, 1) == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3])
    assert waits(0, 0, 0, 1) == pytest.approx([0.1, 0.2, 0.4, 0.3])


def test_after_a_good_run_it_begins_again() -> None:
    assert waits(0, 0, 4, 0) == pytest.approx([0.1, 0.2, 0.1, 0.2])


@pytest.mark.parametrize("wrong", [{"first_s": 0}, {"ready_most_s": -1}, {"well_s": -1}])
def test_what_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BackoffConfig(**wrong)
