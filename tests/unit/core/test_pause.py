"""How long something that fails is left alone."""

import pytest

from inlay.core.clock import FakeClock
from inlay.core.errors import StoreUnavailable
from inlay.core.pause import Pause


def test_pauses_grow_until_something_works(caplog: pytest.LogCaptureFixture) -> None:
    clock, failures = FakeClock(), []
    pause = Pause("asking", clock, lambda: failures.append(1))
    assert not pause.on
    for seconds in (1, 2, 4, 8, 16, 30, 30):
        pause.note(StoreUnavailable("no"))
        clock.advance(seconds - 0.01)
        assert pause.on
        clock.advance(0.02)
        assert not pause.on
    pause.note(None)
    pause.note(None)
    pause.note(ValueError("x"))
    pause.note(ValueError("during a pause it is counted, and not made longer"))
    clock.advance(1.01)
    assert not pause.on and len(failures) == 9
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "asking fails, and pauses for 1 s: no" and len(said) == 9
    assert said.count("asking works again") == 1
