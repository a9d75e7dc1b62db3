"""How times are judged."""

from math import inf

import pytest

from inlay.cluster.slo import SloClass, SloClasses, meets, tbt_s
from inlay.core.errors import ConfigError, RequestError


def test_the_worst_tenth_of_gaps() -> None:
    assert tbt_s([]) == 0.0
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
    with pytest.raises(ConfigError, match=r"^ttft is 0 s: it must be above 0"):
        SloClass(name="fast", ttft_s=0)
    with pytest.raises(ConfigError, match=r"tbt \(0\.2 s\) is above itl \(0\.1 s\)"):
        SloClass(tbt_s=0.2, itl_s=0.1)
    with pytest.raises(ConfigError, match="empty"):
        SloClass(name="")


def test_requests_name_their_class() -> None:
    chat = SloClass(name="chat", ttft_s=1.0)
    batch = SloClass(name="batch", priority=2)
    classes = SloClasses({"chat": chat, "batch": batch})
    assert classes.named("batch") is batch
    for name in (None, "", "auto", "default", "chat"):
        assert classes.named(name) is chat
    urgent, flex = classes.named("priority"), classes.named("flex")
    assert (urgent.ttft_s, urgent.priority) == (1.0, -1)
    assert (flex.ttft_s, flex.priority) == (inf, 1)
    with pytest.raises(
        RequestError, match="'gold': it may be .*flex, priority, chat, batch"
    ) as told:
        classes.named("gold")
    assert told.value.param == "service_tier"


def test_the_class_named_default_is_the_default_one() -> None:
    declared = {"chat": SloClass(name="chat"), "default": SloClass(ttft_s=2.0)}
    declared["flex"] = SloClass(name="flex", ttft_s=60.0)
    classes = SloClasses(declared)
    assert classes.named(None) is classes.default is declared["default"]
    assert classes.named("flex").ttft_s == 60.0


def test_priorities_are_the_requests_or_the_classs_and_the_tenants() -> None:
    classes = SloClasses({}, {"gold": -2})
    flex = classes.named("flex")
    assert classes.priority(flex, None, "") == 1
    assert classes.priority(flex, 0, "other") == 0
    assert classes.priority(flex, None, "gold") == -1
    with pytest.raises(RequestError, match="32 bits"):
        classes.priority(flex, 2**31, "")
