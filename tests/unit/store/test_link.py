"""The thread that looks for an elected master."""

import threading
import time
from typing import Any

import pytest

from inlay.store import link


def test_closing_waits_for_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def follow(*arguments: Any) -> None:
        assert arguments[-1].heard(60.0)
        time.sleep(0.2)  # as the end of a connection takes
        ended.set()

    monkeypatch.setattr(link, "_connect", lambda *_: ("127.0.0.1:1", object()))
    monkeypatch.setattr(link, "_follow", follow)
    found = link.Link("etcd://127.0.0.1:1/store", b"", timeout_s=1.0)
    found.close()
    assert ended.is_set()
