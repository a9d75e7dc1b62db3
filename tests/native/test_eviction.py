"""Eviction policies: beside plain references, and what each promises whatever happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import ArgumentError
from inlay.store import EvictionPolicy, Newcomer
from tests.native import eviction_reference as reference

REFERENCES = {"lru": reference.Lru, "s3fifo": reference.S3Fifo, "cost": reference.Cost}
SECOND = 1_000_000_000
NUM_KEYS = 60


def hash_of(key: int) -> int:
    word = (key + 1) * 0x9E3779B97F4A7C15 % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    return word ^ word >> 31


class Both:
    """A policy and its reference, given the same; keys map to numbers that are used again."""

    def __init__(self, name: str) -> None:
        self.policy = EvictionPolicy(name)
        self.reference = REFERENCES[name]()
        self.ids: dict[int, int] = {}
        self.parents: dict[int, int | None] = {}  # by key
        self.free = list(range(NUM_KEYS))[::-1]
        self.now_ns = 0

    def store(self, keys: list[int], cost: int, soft: bool) -> None:
        """A prompt: what is there is hit, the rest added behind it."""
        self.hit([key for key in keys if key in self.ids])
        chain, parent = [], None
        for key in keys:
            if key not in self.ids:
                self.ids[key] = self.free.pop()
                self.parents[key] = parent
                above = None if parent is None else self.ids[parent]
                chain.append(Newcomer(self.ids[key], above, hash_of(key), 1000, cost, soft))
            parent = key
        self.policy.add(chain, self.now_ns)
        self.reference.add(chain, self.now_ns)

    def hit(self, keys: list[int]) -> None:
        chain = [self.ids.get(key, 10**6) for key in keys]
        self.policy.hit(chain, self.now_ns)
        self.reference.hit(chain, self.now_ns)

    def remove(self, key: int) -> None:
        id = self.ids.pop(key)
        self.policy.remove(id)
        self.reference.remove(id)
        self.free.append(id)

    def evict(self, held: set[int]) -> int | None:
        """Evicts the next victim; returns its key."""
        ids = {self.ids[key] for key in held if key in self.ids}
        victim = self.policy.victim(self.now_ns, ids.__contains__)
        assert victim == self.reference.victim(self.now_ns, ids.__contains__)
        if victim is None:
            return None
        key = next(key for key, id in self.ids.items() if id == victim)
        self.policy.evict(victim, hash_of(key))
        self.reference.evict(victim, hash_of(key))
        del self.ids[key]
        self.free.append(victim)
        return key

    def check(self) -> None:
        lists = {name: ids for name, ids in self.policy.order() if ids}
        assert lists == self.reference.lists.ids()
        assert len(self.policy) == len(self.ids)
        assert all(id in self.policy for id in self.ids.values())
        assert all(id not in self.policy for id in self.free)
        if isinstance(self.reference, reference.Cost):
            assert self.policy.newcomers_share == pytest.approx(self.reference.share)


# A prompt of a tree: document d forks at block f into two endings.
def prompt(document: int, length: int, ending: int) -> list[int]:
    fork = 3
    return [document * 12 + k + (6 * ending if k >= fork else 0) for k in range(length)]


prompts = st.builds(prompt, st.integers(0, 4), st.integers(1, 6), st.integers(0, 1))
steps = st.one_of(
    st.tuples(st.just("store"), prompts, st.sampled_from([0, 10, 1000, 90_000]), st.booleans()),
    st.tuples(st.just("hit"), prompts),
    st.tuples(st.just("evict"), st.integers(1, 8), st.sets(st.integers(0, NUM_KEYS), max_size=30)),
    st.tuples(st.just("remove"), st.integers(0, NUM_KEYS - 1)),
    st.tuples(st.just("wait"), st.sampled_from([SECOND // 3, 3 * SECOND, 40 * SECOND])),
)


def run(both: Both, step: tuple) -> None:  # type: ignore[type-arg]
    match step:
        case ("store", keys, cost, soft):
            both.store(keys, cost, soft and keys[0] % 24 == 0)
        case ("hit", keys):
            both.hit(keys)
        case ("evict", count, held):
            for _ in range(count):
                both.evict(held)
        case ("remove", key):
            if key in both.ids:
                both.remove(key)
        case ("wait", ns):
            both.now_ns += ns


@pytest.mark.parametrize("name", REFERENCES)
@given(st.lists(steps, max_size=60))
def test_equals_its_reference(name: str, history: list) -> None:  # type: ignore[type-arg]
    both = Both(name)
    for step in history:
        run(both, step)
        both.check()
    both.now_ns += SECOND  # nothing is set aside any longer
    while both.evict(set()) is not None:
        both.check()
    assert not both.ids


@given(st.lists(steps, max_size=60))
def test_cost_evicts_no_parent_before_its_child(history: list) -> None:  # type: ignore[type-arg]
    both = Both("cost")
    for step in [*history, ("wait", SECOND), *[("evict", 1, set())] * NUM_KEYS]:
        for part in [("evict", 1, step[2])] * step[1] if step[0] == "evict" else [step]:
            run(both, part)
            for key in both.ids:
                parent = both.parents[key]
                if step == ("remove", parent):  # the child follows nobody from now on
                    both.parents[key] = None
                else:
                    assert parent is None or parent in both.ids, f"{parent} went before {key}"


@given(st.lists(st.tuples(prompts, st.integers(0, 4)), max_size=60))
def test_lru_evicts_no_parent_before_its_child_when_prompts_are_touched_whole(
    history: list[tuple[list[int], int]],
) -> None:
    both = Both("lru")
    for keys, evictions in history:
        both.store(keys, 0, False)
        for _ in range(evictions):
            both.evict(set())
            for key in both.ids:
                parent = both.parents[key]
                assert parent is None or parent in both.ids


def drained(policy: EvictionPolicy, now_ns: int) -> list[int]:
    """Evicts everything; returns the order."""
    gone = []
    while (id := policy.victim(now_ns)) is not None:
        policy.evict(id, hash_of(id))
        gone.append(id)
    return gone


@pytest.mark.parametrize("name", REFERENCES)
def test_held_objects_keep_their_place_and_are_asked_about_once_a_second(name: str) -> None:
    policy = EvictionPolicy(name)
    policy.add([Newcomer(id, None, hash_of(id)) for id in range(40)], 0)
    expected = [id for _, ids in policy.order() for id in ids]
    held = set(expected[:10])
    asked: list[int] = []

    def ask(id: int) -> bool:
        asked.append(id)
        return id in held

    for _ in range(20):
        assert policy.victim(1, ask) == expected[10]
    assert all(asked.count(id) == 1 for id in held)
    held.clear()
    assert policy.victim(2, ask) == expected[10]  # not yet
    assert policy.victim(1 + SECOND, ask) == expected[0]
    assert [id for _, ids in policy.order() for id in ids] == expected
    assert drained(policy, 1 + SECOND) == expected


@pytest.mark.parametrize("name", REFERENCES)
def test_when_all_are_held_there_is_no_victim(name: str) -> None:
    policy = EvictionPolicy(name)
    policy.add([Newcomer(1), Newcomer(2, 1, soft_pin=True)], 0)
    assert policy.victim(0, lambda id: True) is None
    assert policy.victim(2 * SECOND, lambda id: id == 1) == 2


@pytest.mark.parametrize("name", REFERENCES)
def test_soft_pins_go_last(name: str) -> None:
    policy = EvictionPolicy(name)
    policy.add([Newcomer(0, None, hash_of(0), soft_pin=True)], 0)
    policy.add([Newcomer(id, None, hash_of(id)) for id in range(1, 30)], 100 * SECOND)
    assert drained(policy, 100 * SECOND)[-1] == 0


def test_what_costs_more_per_byte_is_kept_longer() -> None:
    policy = EvictionPolicy("cost")
    cheap = [Newcomer(id, None, hash_of(id), 1000, 100) for id in range(20)]
    dear = [Newcomer(id, None, hash_of(id), 1000, 12_800) for id in range(20, 40)]
    policy.add(dear, 0)
    policy.add(cheap, 60 * SECOND)
    assert set(drained(policy, 90 * SECOND)[:20]) == set(range(20))
    policy.add(dear, 0)
    policy.add(cheap, 400 * SECOND)  # 128 times the age is too long at 128 times the cost
    assert set(drained(policy, 401 * SECOND)[:20]) == set(range(20, 40))


@pytest.mark.parametrize("name", ["s3fifo", "cost"])
def test_a_scan_leaves_what_is_used(name: str) -> None:
    policy = EvictionPolicy(name)
    used = range(50)
    policy.add([Newcomer(id, None, hash_of(id)) for id in used], 0)
    policy.hit(list(used), 10 * SECOND)
    for id in range(100, 5000):
        if len(policy) == 100:
            victim = policy.victim(20 * SECOND)
            assert victim is not None
            policy.evict(victim, hash_of(victim))
        policy.add([Newcomer(id, None, hash_of(id))], 20 * SECOND)
    assert sum(id in policy for id in used) >= 45


@pytest.mark.parametrize("name", ["s3fifo", "cost"])
def test_what_comes_back_is_no_newcomer(name: str) -> None:
    policy = EvictionPolicy(name)
    policy.add([Newcomer(id, None, hash_of(id)) for id in range(100)], 0)
    back = policy.victim(0)
    assert back is not None
    policy.evict(back, hash_of(back))
    policy.add([Newcomer(back, None, hash_of(back))], SECOND)
    assert {n.split()[0]: ids for n, ids in policy.order()}["main"] == [back]
    policy.remove(back)  # its owner's doing: says nothing
    policy.add([Newcomer(back, None, hash_of(back))], SECOND)
    assert not {n.split()[0]: ids for n, ids in policy.order()}.get("main")


def test_a_hit_right_after_the_put_is_part_of_it() -> None:
    policy = EvictionPolicy("cost")
    policy.add([Newcomer(1), Newcomer(2)], 0)
    policy.hit([1], SECOND)
    policy.hit([2], 5 * SECOND)
    assert dict(policy.order()) == {"new 8": [1], "main 8": [2]}


def test_a_number_used_again_has_none_of_the_old_children() -> None:
    policy = EvictionPolicy("cost")
    policy.add([Newcomer(1), Newcomer(2, 1)], 0)
    policy.remove(1)
    policy.add([Newcomer(1, 2)], 0)  # the other way round
    assert drained(policy, 0) == [1, 2]


@pytest.mark.parametrize("name", REFERENCES)
def test_bad_input(name: str) -> None:
    policy = EvictionPolicy(name)
    policy.add([Newcomer(3)], 0)
    with pytest.raises(ArgumentError, match="3 is there already"):
        policy.add([Newcomer(3)], 0)
    with pytest.raises(ArgumentError, match="4 is there already"):
        policy.add([Newcomer(4), Newcomer(4)], 0)
    with pytest.raises(ArgumentError, match="at least 1"):
        policy.add([Newcomer(5, bytes=0)], 0)
    with pytest.raises(ArgumentError, match="2147483648"):
        policy.add([Newcomer(2**31)], 0)
    with pytest.raises(ArgumentError, match="9 is not there"):
        policy.evict(9, 0)
    policy.remove(9)
    policy.hit([9, 2**32 - 1], 0)
    assert len(policy) == 1
    with pytest.raises(ArgumentError, match="allowed: cost, lru, s3fifo"):
        EvictionPolicy("fifo")


@pytest.mark.parametrize(("name", "most"), [("lru", 9.1), ("s3fifo", 13.7), ("cost", 19.7)])
def test_memory_per_object(name: str, most: float) -> None:
    policy = EvictionPolicy(name)
    count = 18 << 13
    policy.add([Newcomer(id, id - 1 if id % 50 else None, hash_of(id)) for id in range(count)], 0)
    for id in range(0, count, 3):
        policy.evict(id, hash_of(id))
    assert policy.memory_bytes() / count <= most
