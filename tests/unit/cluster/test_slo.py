"""How times are judged."""

from math import inf

import pytest

from inlay.cluster.slo import SloClass, gaps_s, meets, tbt_s
from inlay.core.errors import ConfigError


def test_gaps_and_their_worst_tenth() -> None:
    assert gaps_s([1.0]) == [] and tbt_s([]) == 0.0
    assert gaps_s([1.0, 1.5, 3.0]) == [0.5, 1.5]
    assert tbt_s([0.5, 1.5]) == 1.5
    assert tbt_s([1.0] * 18 + [2.0, 4.0]) == 3.0


def test_all_objectives_must_be_kept() -> None:
    slo = SloClass(ttft_s=1.0, tbt_s=0.1, itl_s=0.5)
    assert meets(slo, 1.0, [0.1] * 20)
    assert not meets(slo, 1.1, [0.1] * 20)
    assert not meets(slo, 1.0, [0.1] * 19 + [0.3])
    assert not meets(SloClass(itl_s=0.2), 0.0, [0.1] * 99 + [0.3])
    assert meets(SloClass(), inf, [9.0])


def test_impossible_objectives_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"slo\.fast\.ttft_s must be above 0 seconds, got 0"):
        SloClass(name="fast", ttft_s=0)
    with pytest.raises(ConfigError, match=r"tbt_s \(0\.2\) is above itl_s \(0\.1\)"):
        SloClass(tbt_s=0.2, itl_s=0.1)
    with pytest.raises(ConfigError, match="empty"):
        SloClass(name="")
