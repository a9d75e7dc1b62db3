import pytest

from inlay.cache.index import PrefixIndex
from inlay.core.block_hash import ROOT


def _digests(count: int) -> list[bytes]:
    return [bytes([n + 1]) * 16 for n in range(count)]


def _filled(count: int) -> PrefixIndex:
    index = PrefixIndex()
    parent = ROOT
    for page, digest in enumerate(_digests(count)):
        index.add(digest, page, parent)
        parent = digest
    return index


@pytest.mark.parametrize("present", range(6))
@pytest.mark.parametrize("limit", [0, 1, 3, 5, 9])
def test_longest_match_counts_leading_blocks(present, limit):
    index = _filled(present)
    assert index.longest_match(_digests(5), limit) == min(present, 5, limit)


def test_a_parent_cannot_go_before_its_child():
    index = _filled(3)
    with pytest.raises(AssertionError):
        index.remove_page(1)
    for page in (2, 1, 0):
        assert index.remove_page(page) == _digests(3)[page]
    assert len(index) == 0
    index.audit()


def test_siblings_keep_their_parent():
    first, second, third = _digests(3)
    index = PrefixIndex()
    index.add(first, 0, ROOT)
    index.add(second, 1, first)
    index.add(third, 2, first)
    index.remove_page(1)
    with pytest.raises(AssertionError):
        index.remove_page(0)
    assert index.parent_page(2) == 0
    assert index.parent_page(0) is None
    index.audit()
