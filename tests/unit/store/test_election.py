"""Elections under any order of events: never two masters, never a lower epoch.

The key is kept by a dictionary with etcd's rules; time is made up. The same code runs against a
real etcd in the integration tests.
"""

import random
from collections.abc import Callable

import pytest

from inlay.core.errors import EndpointError, StoreUnavailable
from inlay.core.etcd import Etcd, EtcdValue
from inlay.store.address import Cluster
from inlay.store.election import LEASE_S, MARGIN_S, Election, Seat
from inlay.store.succession import Reign

CLUSTER = Cluster(members=(("nowhere", 1),), name="test")


class Kept(Etcd):
    """One key, as etcd keeps it: each put has a greater revision."""

    def __init__(self) -> None:
        super().__init__([("nowhere", 1)])
        self.held: EtcdValue | None = None
        self.revision = 0
        self.lose: Callable[[], str] = lambda: ""
        self.delay: Callable[[], None] = lambda: None

    def get(self, key: str, *, timeout_s: float) -> EtcdValue | None:
        self.delay()
        held = self.held
        self.delay()
        if self.lose():
            raise EndpointError("lost")
        return held

    def put_if(
        self, key: str, value: bytes, *, revision: int, timeout_s: float
    ) -> tuple[bool, EtcdValue | None]:
        lost = self.lose()
        if lost == "question":
            raise EndpointError("lost")
        self.delay()
        done = revision == (0 if self.held is None else self.held.revision)
        if done:
            self.revision += 1
            self.held = EtcdValue(value=value, revision=self.revision)
        self.delay()
        if lost == "answer":
            raise EndpointError("lost")
        return done, self.held


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_first_is_master_at_once_and_a_second_waits_for_its_end() -> None:
    kept, clock = Kept(), Clock()
    a, b = (Election(CLUSTER, name, etcd=kept, clock=clock) for name in ("a:1", "b:1"))
    reign, _ = a.attempt()
    assert reign == Reign(epoch=1, nodes=(), until=clock.now + LEASE_S - MARGIN_S)
    assert a.renew(["n1"]) == reign.until
    taken, seen = b.attempt()
    assert taken is None and seen is not None and seen.address == "a:1"
    a.end()
    taken, _ = b.attempt(above=9)
    assert taken is not None and (taken.epoch, taken.nodes) == (10, ("n1",))
    assert a.attempt()[0] is None


def test_a_silent_master_is_replaced_when_its_lease_is_over() -> None:
    kept, clock = Kept(), Clock()
    a, b = (Election(CLUSTER, name, etcd=kept, clock=clock) for name in ("a:1", "b:1"))
    first, _ = a.attempt()
    assert first is not None and b.attempt()[0] is None
    clock.now += LEASE_S - 0.01
    assert b.attempt()[0] is None and clock.now > first.until
    clock.now += 0.01
    second, _ = b.attempt()
    assert second is not None and second.epoch == 2
    assert a.renew([]) is None


def test_a_lease_runs_from_the_question_not_from_its_answer() -> None:
    """Who waits may have seen the seat when it was put, not when its owner heard of it."""
    kept, clock = Kept(), Clock()
    a = Election(CLUSTER, "a:1", etcd=kept, clock=clock)

    def slow() -> None:
        clock.now += 0.2

    kept.delay = slow
    begun = clock.now + 0.4  # two delays until it has looked
    reign, _ = a.attempt()
    assert reign is not None and reign.until == begun + LEASE_S - MARGIN_S
    begun = clock.now
    assert a.renew([]) == begun + LEASE_S - MARGIN_S < clock.now + LEASE_S - MARGIN_S


def test_a_renewal_whose_answer_was_lost_does_not_end_the_reign() -> None:
    kept, clock = Kept(), Clock()
    a = Election(CLUSTER, "a:1", etcd=kept, clock=clock)
    assert a.attempt()[0]
    kept.lose = lambda: "answer"
    with pytest.raises(EndpointError):
        a.renew([])
    kept.lose = lambda: ""
    clock.now += 1
    assert a.renew(["n"]) == clock.now + LEASE_S - MARGIN_S


def test_another_thing_under_the_key_is_said() -> None:
    kept = Kept()
    kept.put_if("", b"hello", revision=0, timeout_s=1)
    with pytest.raises(StoreUnavailable, match=r"/inlay/stores/test/master .*holds no master's"):
        Election(CLUSTER, "a:1", etcd=kept).attempt()
    assert Seat.from_bytes(Seat(holder="h", address=None, epoch=3).to_bytes(), "").epoch == 3


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_events_makes_two_masters(seed: int) -> None:
    """Processes that are paused, cut off and delayed at any point."""
    chance = random.Random(seed)
    kept, clock = Kept(), Clock()
    kept.lose = lambda: chance.choice(["", "", "", "", "question", "answer"])
    elections = [Election(CLUSTER, f"{n}:1", etcd=kept, clock=clock) for n in range(3)]
    until = [0.0] * 3
    reigns: list[list[int]] = [[] for _ in range(3)]
    served = 0

    def delay() -> None:
        clock.now += chance.choice([0.0, 0.0, 0.02, 3 * chance.random() ** 16])

    kept.delay = delay
    for _ in range(1500):
        clock.now += chance.choice([0.0, 0.01, 0.05, 0.1, 0.1, 0.4, 2.5 * chance.random() ** 8])
        n = chance.randrange(3)
        try:
            if until[n] > clock.now:
                renewed = elections[n].renew([])
                until[n] = 0.0 if renewed is None else renewed
                if chance.random() < 0.01:
                    until[n] = 0.0  # it stops serving before it says so
                    elections[n].end()
            else:
                reign, _ = elections[n].attempt()
                if reign is not None:
                    until[n] = reign.until
                    reigns[n].append(reign.epoch)
                    assert reign.epoch == max(map(max, filter(None, reigns)))
        except EndpointError:
            pass
        masters = [m for m in range(3) if until[m] > clock.now]
        assert len(masters) <= 1, f"{masters} at {clock.now}"
        served += len(masters)
    epochs = sorted(sum(reigns, []))
    assert len(set(epochs)) == len(epochs) > 3
    assert served > 300
