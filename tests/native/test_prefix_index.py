"""The compiled prefix index gives the answers of the reference, whatever happened before."""

import random
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay import _native
from inlay.cluster._reference import PrefixIndex as Reference

LETTERS = "ab"
LONGEST = 6


def digest(path: str) -> bytes:
    """A name for a path of letters: 16 bytes that say nothing of where it will lie."""
    return random.Random(path).randbytes(16)


def blocks(text: str) -> list[bytes]:
    return [digest(text[: i + 1]) for i in range(len(text))]


class Pair:
    """Both of them, and what has been put where."""

    def __init__(self) -> None:
        self.both = (_native.cluster.PrefixIndex(1, 2), Reference(1, 2))
        self.slots: list[int] = []

    def do(self, name: str, *arguments: object) -> object:
        mine, theirs = (getattr(one, name)(*arguments) for one in self.both)
        assert mine == theirs, name
        return mine

    def add(self) -> None:
        slot = self.do("add")
        assert isinstance(slot, int)
        self.slots.append(slot)

    def remove(self, slot: int) -> None:
        self.do("remove", slot)
        self.slots.remove(slot)

    def check(self, chains: Sequence[Sequence[bytes]]) -> None:
        native, reference = self.both
        assert native.num_slots == reference.num_slots
        assert native.num_expected == reference.num_expected
        assert len(native) == len(reference)
        for slot in self.slots:
            self.do("num_blocks", slot)
        sizes = np.array([len(chain) for chain in chains], np.uint32)
        joined = b"".join(b"".join(chain) for chain in chains)
        answers = []
        for one in self.both:
            lengths = np.full((len(chains), one.num_slots + 1), -1, np.int32)
            one.match_many(joined, sizes, lengths)
            for chain, row in zip(chains, lengths, strict=True):
                single = np.full(one.num_slots, -1, np.int32)
                one.match(b"".join(chain), single)
                assert single.tolist() == row[:-1].tolist()
            answers.append(lengths.tolist())
        assert answers[0] == answers[1]


text = st.text(LETTERS, min_size=1, max_size=LONGEST)
step = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 40)),
    st.tuples(st.just("remove"), st.integers(0)),
    st.tuples(st.just("load"), st.integers(0), st.lists(text, max_size=4)),
    st.tuples(st.just("stored"), st.integers(0), st.lists(text, max_size=4)),
    # Any block, so that instances have blocks without their parents, too.
    st.tuples(st.just("removed"), st.integers(0), st.lists(text, max_size=4)),
    st.tuples(st.just("expect"), st.integers(0), text),
    st.tuples(st.just("everyone"), text),
    st.tuples(st.just("turn")),
)
TEXTS = ["ababab", "aaaaaa", "abbbba", "bbaabb", "babaab", "b"]


@given(steps=st.lists(step, max_size=60))
def test_equals_the_reference(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    pair = Pair()
    for kind, *arguments in steps:
        match kind, arguments:
            case "add", [count]:
                for _ in range(count):
                    pair.add()
            case "turn", []:
                pair.do("turn")
            case "everyone", [what]:
                for slot in pair.slots:
                    pair.do("apply", slot, True, b"".join(blocks(what)))
            case _, [number, *rest] if pair.slots:
                slot = pair.slots[number % len(pair.slots)]
                texts = rest[0] if rest else []
                chains = b"".join(b"".join(blocks(what)) for what in texts)
                if kind == "remove":
                    pair.remove(slot)
                elif kind == "load":
                    pair.do("load", slot, chains)
                elif kind == "expect":
                    pair.do("expect", slot, b"".join(blocks(rest[0])))
                elif kind == "stored":
                    pair.do("apply", slot, True, chains)
                else:
                    pair.do("apply", slot, False, b"".join(digest(what) for what in texts))
        pair.check([blocks(what) for what in TEXTS])


@pytest.mark.parametrize("seed", range(3))
def test_a_long_history(seed: int) -> None:
    """Thousands of blocks, so that tables grow and shrink; 150 slots, so that sets have words."""
    draw = random.Random(seed)
    names = [draw.randbytes(16) for _ in range(400)]  # the beginning of all chains

    def chain() -> list[bytes]:
        own = random.Random(draw.randrange(60))
        return names[: own.randrange(400)] + [own.randbytes(16) for _ in range(own.randrange(300))]

    pair = Pair()
    for _ in range(150):
        pair.add()
    for round_ in range(40):
        for _ in range(10):
            slot = draw.choice(pair.slots)
            joined = b"".join(chain())
            kind = draw.choice(("load", "apply", "apply", "expect"))
            pair.do(kind, slot, *((True,) if kind == "apply" else ()), joined)
            if draw.random() < 0.3:
                pair.do("apply", slot, False, joined[16 * draw.randrange(200) :])
        if round_ % 5 == 4:
            pair.do("turn")
            for slot in draw.sample(pair.slots, 20 if round_ < 30 else 60):
                pair.remove(slot)
            while len(pair.slots) < (150 if round_ < 30 else 1):
                pair.add()
        pair.check([chain() for _ in range(8)])
    for slot in list(pair.slots):
        pair.remove(slot)
    pair.do("turn")
    pair.do("turn")
    pair.check([chain()])
    assert pair.both[0].memory_bytes() < 1 << 20


def test_digests_that_collide_are_told_apart() -> None:
    """The same lower half: they all lie in one place of one table."""
    index = _native.cluster.PrefixIndex(5, 7)
    slot = index.add()
    index.add()
    # The product of the hash is 0 for each.
    same = [(5).to_bytes(8, "little") + i.to_bytes(8, "little") for i in range(300)]
    index.apply(slot, True, b"".join(same))
    index.apply(slot, False, b"".join(same[100:200]))
    lengths = np.zeros(2, np.int32)
    for i, one in enumerate(same):
        index.match(one, lengths)
        assert lengths.tolist() == [0 if 100 <= i < 200 else 1, 0]
    index.remove(slot)
    assert len(index) == 0


def test_bytes_of_a_block() -> None:
    index = _native.cluster.PrefixIndex(1, 2)
    slot = index.add()
    index.load(slot, random.Random(1).randbytes(16 * 200_000))
    assert 32 <= index.memory_bytes() / 200_000 <= 50
    assert index.num_blocks(slot) == 200_000


def test_threads_wait_for_each_other() -> None:
    index = _native.cluster.PrefixIndex(1, 2)
    slots = [index.add() for _ in range(2)]
    blobs = [random.Random(slot).randbytes(16 * 20_000) for slot in slots]
    wrong = []

    def change(slot: int) -> None:
        for _ in range(20):
            index.load(slot, blobs[slot])
            index.load(slot, blobs[slot][: 16 * 10_000])

    def look() -> None:
        lengths = np.zeros(2, np.int32)
        for _ in range(2000):
            index.match(blobs[0][: 16 * 500], lengths)
            if lengths[0] != 500 and lengths[0] != 0 or lengths[1] != 0:
                wrong.append(lengths.tolist())

    threads = [threading.Thread(target=change, args=(slot,)) for slot in slots]
    threads.append(threading.Thread(target=look))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert [index.num_blocks(slot) for slot in slots] == [10_000, 10_000]
