"""A store that may not be there: what a caller sees of it."""

import pytest

from inlay.connect.shared_store import SharedStore
from inlay.core.clock import FakeClock
from inlay.core.errors import StoreUnavailable
from inlay.store import Store


def _embedded(master, *, contribute=None, timeout_s=5.0):
    return Store.embedded(memory="1MiB")


def test_what_the_store_says():
    store = SharedStore("here", connect=_embedded)
    assert store.call(lambda opened: opened.put("a", b"1").stored, False)
    assert store.call(lambda opened: opened.get("a"), b"") == b"1"
    store.close()
    assert store.call(lambda opened: opened.get("a"), b"none") == b"none"


def test_nobody_there_is_asked_once_a_pause(caplog):
    asked = []

    def connect(master, **options):
        asked.append(master)
        return Store.connect(master, **options)

    store = SharedStore("127.0.0.1:1", timeout_s=0.3, connect=connect, clock=FakeClock())
    assert store.usable
    for _ in range(2):
        assert store.call(lambda opened: opened.exists("a"), None) is None
        assert not store.usable
    assert asked == ["127.0.0.1:1"]
    assert sum("pauses for 1 s" in record.message for record in caplog.records) == 1


def test_it_is_used_again_when_it_answers(caplog):
    clock = FakeClock()
    refusals = iter([StoreUnavailable("no")])

    def connect(master, **kwargs):
        for refusal in refusals:
            raise refusal
        return _embedded(master)

    store = SharedStore("here", connect=connect, clock=clock)
    assert store.call(lambda opened: opened.exists("a"), None) is None
    assert not store.usable
    clock.advance(1.0)
    assert store.call(lambda opened: opened.exists("a"), None) is False
    assert "the store at here works again" in caplog.text
    store.close()


def test_what_waiting_cannot_mend_is_said_once(caplog):
    store = SharedStore("no address")
    assert store.call(lambda opened: opened.exists("a"), None) is None
    assert not store.usable and "no store is used" in caplog.text


def test_other_errors_are_the_caller_s():
    store = SharedStore("here", connect=_embedded)
    with pytest.raises(ZeroDivisionError):
        store.call(lambda opened: 1 // 0, 0)
    store.close()
