from inlay.cache import WriteBack


def _pages(batch):
    return [page_id for page_id, _ in batch]


def test_through_copies_each_new_block_once_in_order():
    write_back = WriteBack("through")
    for page_id in (5, 3, 8):
        write_back.stored(page_id, bytes([page_id]), b"\0")
    assert write_back.take(2) == [(5, (b"\5", b"\0")), (3, (b"\3", b"\0"))]
    write_back.saved([5, 3], good=True)
    assert _pages(write_back.take(2)) == [8]
    write_back.saved([8], good=True)
    write_back.reused([5, 3, 8])
    write_back.cooling([5, 3, 8])
    assert write_back.take(9) == []


def test_second_hit_copies_what_is_used_again():
    write_back = WriteBack("second_hit")
    for page_id in (1, 2, 3):
        write_back.stored(page_id, bytes([page_id]), b"\0")
    assert write_back.take(9) == []
    write_back.reused([1, 2])
    write_back.reused([1])
    assert _pages(write_back.take(9)) == [1, 2]
    write_back.saved([1, 2], good=True)
    write_back.reused([1, 2])
    assert write_back.take(9) == []


def test_evict_copies_what_is_about_to_go():
    write_back = WriteBack("evict")
    for page_id in (1, 2, 3):
        write_back.stored(page_id, bytes([page_id]), b"\0")
    write_back.reused([1, 2, 3])
    assert write_back.take(9) == []
    write_back.cooling([3, 7])
    assert _pages(write_back.take(9)) == [3]
    write_back.saved([3], good=True)
    write_back.cooling([3])
    assert write_back.take(9) == []


def test_what_goes_before_its_copy_is_lost_and_counted():
    for when, lost in (("through", 1), ("second_hit", 0), ("evict", 1)):
        write_back = WriteBack(when)
        write_back.stored(1, b"a", b"\0")
        write_back.evicted(1)
        write_back.evicted(2)
        assert write_back.lost == lost
        write_back.reused([1])
        write_back.cooling([1])
        assert write_back.take(9) == [], "the page has another content now"


def test_a_failed_copy_waits_for_the_next_occasion():
    write_back = WriteBack("through")
    write_back.stored(1, b"a", b"\0")
    write_back.take(9)
    write_back.saved([1], good=False)
    assert write_back.take(9) == []
    write_back.reused([1])
    assert write_back.take(9) == [(1, (b"a", b"\0"))]


def test_a_page_that_goes_while_it_is_copied_is_forgotten():
    write_back = WriteBack("through")
    write_back.stored(1, b"a", b"\0")
    write_back.take(9)
    write_back.evicted(1)
    assert write_back.lost == 0, "its copy still becomes good"
    write_back.saved([1], good=False)
    write_back.reused([1])
    assert write_back.take(9) == []
