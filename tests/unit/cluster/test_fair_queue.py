"""Who waits for how long behind whom."""

import pytest

from inlay.cluster.fair_queue import FairQueue
from inlay.cluster.shares import Shares
from inlay.core.errors import ConfigError


def test_tenants_take_turns_by_work_and_weight() -> None:
    queue: FairQueue[str] = FairQueue(100, {"c": 2.0})
    for number in range(12):
        for tenant in ("a", "c"):
            queue.push(f"{tenant}{number}", tenant=tenant, work_s=1.0)
    first = [queue.pop()[0] for _ in range(12)]
    assert first.count("c") == 8 and first.count("a") == 4


def test_who_was_idle_has_saved_nothing_up() -> None:
    queue: FairQueue[str] = FairQueue(100)
    for number in range(20):
        queue.push(f"a{number}", tenant="a", work_s=1.0)
    for _ in range(10):
        queue.pop()
    for number in range(5):
        queue.push(f"b{number}", tenant="b", work_s=1.0)
    order = [queue.pop()[0] for _ in range(10)]
    assert order.count("b") == 5
    assert order[:2] != ["b", "b"] or order[2:4] != ["b", "b"]


def test_priority_comes_first_and_best_effort_goes_first() -> None:
    queue: FairQueue[str] = FairQueue(2)
    assert queue.push("batch", tenant="a", work_s=1.0, priority=1) is None
    assert queue.push("normal", tenant="a", work_s=1.0) is None
    assert queue.push("urgent", tenant="a", work_s=1.0, priority=-1) == "batch"
    assert queue.push("late", tenant="a", work_s=1.0, priority=1) == "late"
    assert [queue.pop(), queue.pop()] == ["urgent", "normal"]
    with pytest.raises(IndexError):
        queue.pop()


def test_one_who_does_not_wait_any_more() -> None:
    queue: FairQueue[object] = FairQueue(5)
    items = [object(), object()]
    for item in items:
        queue.push(item, tenant="a", work_s=1.0)
    assert queue.remove(items[0]) and not queue.remove(items[0])
    assert queue.pop() is items[1] and len(queue) == 0


def test_shares() -> None:
    shares = Shares({"big": 3.0}, memory_s=10.0)
    shares.used("small", 9.0, 0.0)
    assert shares.excess("small", 0.0) == 1.0  # it is alone
    shares.used("big", 1.0, 0.0)
    assert shares.excess("small", 0.0) == pytest.approx(9 * 4 / 10)
    assert shares.excess("big", 0.0) == 1.0
    assert shares.excess("new", 0.0) == 1.0
    shares.used("big", 30.0, 40.0)  # what was long ago counts little
    assert shares.excess("small", 40.0) == 1.0
    with pytest.raises(ConfigError, match=r"tenants\.x\.weight must be above 0, got 0"):
        Shares({"x": 0}, 1.0)
