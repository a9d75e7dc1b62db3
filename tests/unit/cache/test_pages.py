import pytest

from inlay.cache.pages import PagePool
from inlay.core.errors import OutOfPagesError


def test_a_page_goes_through_its_states():
    pool = PagePool(2)
    page = pool.take()
    assert (pool.num_free, pool.num_idle, pool.num_used) == (1, 0, 1)
    assert not pool.retain(page)
    assert not pool.drop(page)
    assert pool.drop(page)
    assert (pool.num_free, pool.num_idle, pool.num_used) == (1, 1, 0)
    assert pool.retain(page), "an idle page was reused"
    assert pool.drop(page)
    pool.put_back(page)
    assert (pool.num_free, pool.num_idle, pool.num_used) == (2, 0, 0)
    pool.audit()


def test_an_empty_pool_says_so():
    pool = PagePool(1)
    pool.take()
    with pytest.raises(OutOfPagesError, match="none of the 1 pages"):
        pool.take()


def test_dropping_too_often_is_a_bug():
    pool = PagePool(1)
    page = pool.take()
    pool.drop(page)
    with pytest.raises(AssertionError):
        pool.drop(page)


def test_a_used_page_cannot_be_put_back():
    pool = PagePool(1)
    page = pool.take()
    with pytest.raises(AssertionError):
        pool.put_back(page)
