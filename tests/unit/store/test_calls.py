"""Calls as they are made: that those that wait can be broken off, and that reads count as use."""

import os
import signal
import socket
import threading
import time

import pytest

from inlay.core.errors import StoreError
from inlay.store import PutOptions, Store

HARD = PutOptions(hard_pin=True)


def press_soon() -> threading.Thread:
    """Ctrl-C, in a moment."""

    def press() -> None:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    return presser


def test_a_put_that_waits_for_room_ends_with_ctrl_c() -> None:
    with Store.embedded(memory="4MiB", timeout_s=60) as store:
        with pytest.raises(StoreError):  # nothing may be evicted
            for number in range(100):
                store.put(f"held {number}", bytes(100_000), HARD, timeout_s=0.2)
        with pytest.raises(KeyboardInterrupt):  # at its own end the call raises another error
            presser = press_soon()
            store.put("one more", bytes(1_000_000))
        presser.join()
        assert store.get("held 0") == bytes(100_000)
        store.remove_prefix("held")
        assert store.put("one more", bytes(1_000_000)).stored


def test_waiting_for_a_master_ends_with_ctrl_c() -> None:
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(KeyboardInterrupt):
            presser = press_soon()
            Store.connect(f"127.0.0.1:{taken.getsockname()[1]}", token=bytes(32), timeout_s=60)
        presser.join()


def test_what_is_read_by_a_known_location_counts_as_read() -> None:
    with Store.embedded(memory="4MiB") as store:
        store.put("key", b"value")
        before = store.stat("key").hits
        for _ in range(10):
            assert store.get("key") == b"value"
        # Told once for each time that its location was asked for.
        assert before == 0 and store.stat("key").hits == 1
