"""The prefix index by what it promises; the compiled one and the reference."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from inlay.cluster import PrefixIndex, _backend, _reference
from inlay.core.block_hash import ROOT, chain
from inlay.core.errors import ArgumentError, ResourceError
from inlay.core.instance_messages import KvChange

KINDS = {"reference": _reference.PrefixIndex, "default": _backend.PrefixIndex}
Make = Callable[..., PrefixIndex]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(_backend, "PrefixIndex", KINDS[request.param])
    yield PrefixIndex


def digests(text: str) -> bytes:
    """One block per letter."""
    return b"".join(chain(b"key", [ord(letter) for letter in text], 1, ROOT))


def stored(text: str) -> KvChange:
    return KvChange(True, digests(text))


def removed(text: str, first: int) -> KvChange:
    """Blocks of a text from one on, children first."""
    blocks = chain(b"key", [ord(letter) for letter in text], 1, ROOT)[first:]
    return KvChange(False, b"".join(reversed(blocks)))


def test_leading_blocks_of_each_slot(make: Make) -> None:
    index = make()
    a, b, c = index.add(), index.add(), index.add()
    assert (a, b, c) == (0, 1, 2)
    index.apply(a, [stored("abcdef")])
    index.apply(b, [stored("abcx"), stored("abcde")])
    assert index.match(digests("abcdefgh")).tolist() == [6, 5, 0]
    assert index.match(digests("abcxy")).tolist() == [3, 4, 0]
    assert index.match(digests("z")).tolist() == [0, 0, 0]
    assert index.match(b"").tolist() == [0, 0, 0]
    assert [index.num_blocks(slot) for slot in (a, b, c)] == [6, 6, 0]
    assert len(index) == 7
    index.apply(a, [removed("abcdef", 2), stored("abz")])
    assert index.match(digests("abcdef")).tolist() == [2, 5, 0]
    assert index.match(digests("abz")).tolist() == [3, 2, 0]


def test_what_is_said_twice_counts_once(make: Make) -> None:
    index = make()
    slot = index.add()
    index.apply(slot, [stored("ab"), stored("ab"), removed("xy", 0), removed("ab", 1)])
    index.apply(slot, [removed("ab", 1)])
    assert index.num_blocks(slot) == len(index) == 1


def test_a_snapshot_replaces(make: Make) -> None:
    index = make()
    slot, other = index.add(), index.add()
    index.load(slot, digests("abc"))
    index.load(other, digests("abc"))
    index.load(slot, digests("xy"))
    assert index.match(digests("abc")).tolist() == [0, 3]
    assert index.match(digests("xyz")).tolist() == [2, 0]
    assert index.num_blocks(slot) == 2


def test_slots_are_given_again_without_what_they_had(make: Make) -> None:
    index = make()
    first, second, third = index.add(), index.add(), index.add()
    for slot in (first, second, third):
        index.load(slot, digests("abc"))
    index.expect(first, digests("abcd"), now_s=0)
    index.remove(first)
    assert index.match(digests("abcd"), now_s=0).tolist() == [0, 3, 3]
    index.remove(third)
    assert index.num_slots == 2
    assert index.add() == first
    assert index.match(digests("abcd"), now_s=0).tolist() == [0, 3]
    index.remove(first)
    index.remove(second)
    assert (len(index), index.num_slots, index.match(digests("a")).shape) == (0, 0, (0,))


def test_expected_blocks_count_for_a_while(make: Make) -> None:
    index = make(expect_s=10.0)
    slot = index.add()
    index.load(slot, digests("ab"))
    index.expect(slot, digests("abcd"), now_s=109.0)
    assert index.match(digests("abcde"), now_s=109.0).tolist() == [4]
    assert index.num_expected == 2  # what was known is not expected
    assert index.match(digests("abcde"), now_s=119.5).tolist() == [4]
    index.apply(slot, [removed("ab", 0)])
    assert index.match(digests("abcde"), now_s=119.5).tolist() == [0]
    index.apply(slot, [stored("ab")])
    index.expect(slot, digests("abx"), now_s=119.5)
    assert index.match(digests("abcde"), now_s=120.0).tolist() == [2]
    assert index.match(digests("abxx"), now_s=129.9).tolist() == [3]
    assert index.match(digests("abxx"), now_s=1000.0).tolist() == [2]
    assert index.match(digests("abxx"), now_s=5.0).tolist() == [2]  # time does not go back


def test_expectations_are_bounded(make: Make) -> None:
    index = make(max_expected=4)
    slot = index.add()
    for text in ("abc", "def", "ghi"):
        index.expect(slot, digests(text), now_s=0)
    assert index.match(digests("abc")).tolist() == [3]
    index.expect(slot, digests("jkl"), now_s=0)
    assert index.match(digests("abc")).tolist() == [0]
    assert index.match(digests("ghi")).tolist() == [3]


def test_many_chains_at_once(make: Make) -> None:
    index = make()
    for text in ("abc", "abxyz"):
        index.load(index.add(), digests(text))
    chains = [digests("abcd"), b"", digests("abxyz"), digests("q")]
    sizes = np.array([len(one) // 16 for one in chains], np.uint32)
    together = index.match_many(b"".join(chains), sizes)
    assert together.tolist() == [index.match(one).tolist() for one in chains]
    with pytest.raises(ArgumentError, match="num_blocks"):
        index.match_many(b"".join(chains), sizes[:2])


def test_an_answer_in_place(make: Make) -> None:
    index = make()
    index.load(index.add(), digests("ab"))
    out = np.full(3, 7, np.int32)
    assert index.match(digests("abc"), out_S=out) is out
    assert out.tolist() == [2, 0, 0]
    index.add()
    with pytest.raises(ArgumentError, match="at least 2"):
        index.match(digests("abc"), out_S=np.zeros(1, np.int32))


def test_bad_input(make: Make) -> None:
    index = make()
    slot = index.add()
    for call in (
        lambda: index.load(slot, b"x"),
        lambda: index.apply(slot, [KvChange(True, b"x" * 15)]),
        lambda: index.match(b"x" * 17),
        lambda: index.expect(slot, b"x" * 17, 0),
    ):
        with pytest.raises(ArgumentError, match="16 bytes each"):
            call()
    for call in (
        lambda: index.load(1, b""),
        lambda: index.apply(1, [stored("a")]),
        lambda: index.remove(1),
        lambda: index.expect(1, b"", 0),
        lambda: index.num_blocks(1),
    ):
        with pytest.raises(ArgumentError, match="slot: 1 is not in use"):
            call()
    with pytest.raises(ArgumentError, match="expect_s"):
        make(expect_s=0.0)
    with pytest.raises(ArgumentError, match="max_expected"):
        make(max_expected=0)


def test_slots_end(make: Make) -> None:
    index = make()
    for _ in range(_reference.MAX_SLOTS if isinstance(index._index, KINDS["default"]) else 0):
        index.add()
    if index.num_slots:
        with pytest.raises(ResourceError, match="4096"):
            index.add()
