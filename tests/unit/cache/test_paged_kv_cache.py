import pytest

from inlay.cache import BlockRemoved, BlockStored, PagedKvCache
from inlay.core.block_hash import ROOT
from inlay.core.errors import OutOfPagesError

PAGE = 4


def _cache(num_pages=8, **options):
    return PagedKvCache(
        num_pages=num_pages,
        page_tokens=PAGE,
        namespace_key=lambda salt, adapter, weights: b"key" + salt.encode() + adapter.encode(),
        **options,
    )


def _names(cache, tokens, salt=""):
    names = cache.names(salt)
    names.extend(tokens)
    return names


def _compute(cache, tokens, salt=""):
    """A hold whose tokens are all computed and published, as the engine does it."""
    names = _names(cache, tokens, salt)
    hold = cache.hold(cache.match_prefix(names, len(tokens) - 1), len(tokens))
    cache.publish(hold, names, len(tokens))
    return hold


def test_a_prompt_sent_twice_uses_the_same_pages():
    cache = _cache()
    tokens = list(range(10))
    first = _compute(cache, tokens)
    names = _names(cache, tokens)
    match = cache.match_prefix(names, 9)
    assert (match.num_blocks, match.num_tokens) == (2, 8)
    second = cache.hold(match, 10)
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]
    cache.audit([first, second])


def test_at_least_one_token_is_left_to_compute():
    cache = _cache()
    tokens = list(range(8))
    _compute(cache, tokens)
    assert cache.match_prefix(_names(cache, tokens), 7).num_tokens == 4


def test_other_salts_do_not_meet():
    cache = _cache()
    tokens = list(range(9))
    _compute(cache, tokens, "a")
    assert cache.match_prefix(_names(cache, tokens, "a"), 8).num_tokens == 8
    assert cache.match_prefix(_names(cache, tokens, "b"), 8).num_tokens == 0
    assert cache.match_prefix(_names(cache, tokens), 8).num_tokens == 0


def test_a_released_prefix_stays_until_pages_are_needed():
    cache = _cache(num_pages=3)
    hold = _compute(cache, list(range(9)))
    cache.release(hold)
    assert (cache.counts().free, cache.counts().idle) == (1, 2)
    assert cache.match_prefix(_names(cache, list(range(9))), 8).num_tokens == 8
    other = _compute(cache, list(range(100, 108)))
    assert cache.match_prefix(_names(cache, list(range(9))), 8).num_tokens == 4, "leaf first"
    cache.audit([other])


def test_the_least_recently_used_leaf_goes_first():
    cache = _cache(num_pages=4)
    old, new = list(range(4)), list(range(50, 54))
    for tokens in (old, new, old):
        cache.release(_compute(cache, [*tokens, 99]))
    hold = cache.hold(cache.match_prefix(cache.names(), 0), 3 * PAGE)
    assert cache.match_prefix(_names(cache, old), 4).num_blocks == 1
    assert cache.match_prefix(_names(cache, new), 4).num_blocks == 0
    cache.audit([hold])


def test_equal_blocks_computed_twice_become_one():
    cache = _cache()
    tokens = list(range(8))
    names_a, names_b = _names(cache, tokens), _names(cache, tokens)
    a = cache.hold(cache.match_prefix(names_a, 7), 8)
    b = cache.hold(cache.match_prefix(names_b, 7), 8)
    assert set(a.pages).isdisjoint(b.pages)
    cache.publish(a, names_a, 8)
    cache.publish(b, names_b, 8)
    assert a.pages == b.pages
    assert cache.counts().used == 2
    cache.audit([a, b])


def test_a_child_keeps_its_parents_even_if_others_computed_them():
    cache = _cache(num_pages=6)
    shared = list(range(4))
    names_a, names_b = _names(cache, [*shared, 7, 7, 7, 7]), _names(cache, [*shared, 8, 8, 8, 8])
    a = cache.hold(cache.match_prefix(names_a, 7), 8)
    b = cache.hold(cache.match_prefix(names_b, 7), 8)
    cache.publish(a, names_a, 8)
    cache.publish(b, names_b, 8)
    cache.release(a)
    cache.reset()
    cache.audit([b])
    assert cache.match_prefix(names_b, 8).num_blocks == 2


def test_reserve_grows_and_fails_without_a_trace():
    cache = _cache(num_pages=3)
    hold = cache.hold(cache.match_prefix(cache.names(), 0), 4)
    cache.reserve(hold, 5)
    assert len(hold.pages) == 2
    with pytest.raises(OutOfPagesError, match="2 pages are needed; of 3 only 1 are free"):
        cache.reserve(hold, 16)
    assert len(hold.pages) == 2
    cache.audit([hold])


def test_a_hold_that_does_not_fit_changes_nothing():
    cache = _cache(num_pages=4)
    cache.release(_compute(cache, list(range(9))))
    before = cache.counts()
    match = cache.match_prefix(_names(cache, list(range(20))), 19)
    assert match.num_blocks == 2
    with pytest.raises(OutOfPagesError):
        cache.hold(match, 20)
    assert cache.counts() == before
    cache.audit([])


def test_a_fork_shares_full_pages_only():
    cache = _cache()
    hold = _compute(cache, list(range(10)))
    fork = cache.fork(hold, 10)
    assert fork.pages == hold.pages[:2]
    cache.release(hold)
    cache.audit([fork])
    cache.reserve(fork, 11)
    cache.audit([fork])


def test_without_prefix_reuse_nothing_is_kept():
    cache = _cache(prefix=False)
    hold = _compute(cache, list(range(8)))
    fork = cache.fork(hold, 8)
    cache.release(hold)
    assert cache.counts().used == 2
    cache.release(fork)
    assert cache.counts().free == 8
    assert cache.match_prefix(_names(cache, list(range(8))), 8).num_blocks == 0


def test_events_name_what_came_and_went():
    cache = _cache(num_pages=2)
    cache.record_events(True)
    tokens = list(range(8))
    digests = _names(cache, tokens).digests
    cache.release(_compute(cache, tokens))
    assert cache.take_events() == [
        BlockStored(digests[0], ROOT),
        BlockStored(digests[1], digests[0]),
    ]
    assert cache.take_events() == []
    assert cache.reset() == 2
    assert cache.take_events() == [BlockRemoved(digests[1]), BlockRemoved(digests[0])]
    cache.record_events(False)
    cache.release(_compute(cache, tokens))
    assert cache.take_events() == []
    assert cache.digests() == b"".join(digests)


def test_releasing_twice_does_nothing():
    cache = _cache()
    hold = _compute(cache, list(range(8)))
    cache.release(hold)
    cache.release(hold)
    cache.audit([])
