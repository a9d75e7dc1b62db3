import signal

import pytest

from inlay.serve.first_signal import SIGNALS, first_signal


def test_the_first_one_asks_and_the_second_one_insists() -> None:
    lines: list[str] = []
    before = [signal.getsignal(number) for number in SIGNALS]
    with first_signal(lines.append, "once more ends it") as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        assert lines == ["once more ends it"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before
