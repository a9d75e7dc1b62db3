"""Ctrl-C that asks for an end, and insists on it the second time."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def first_signal(say: Callable[[str], None], line: str) -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether SIGINT or SIGTERM has come; a second one does what it did
    before. For the main thread.

    Args:
        say: takes the line when one comes.
    """
    came: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        restore()
        say(line)

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        yield lambda: bool(came)
    finally:
        restore()
