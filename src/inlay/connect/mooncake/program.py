"""What the programs of this package have in common: signals, and errors in one line."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from inlay.core.errors import InlayError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_program(serve: Callable[[Sequence[str]], int], argv: Sequence[str]) -> NoReturn:
    """Run it and leave; an error of Inlay is its message alone, and code 1."""
    try:
        code = serve(argv)
    except InlayError as error:
        sys.exit(f"error: {error}")
    sys.exit(code)


def wait_for_signal() -> None:
    """Return at Ctrl-C or SIGTERM."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    for number in SIGNALS:
        signal.signal(number, stop)
    while not stopped.wait(0.1):  # another thread may take the signal, and does not wake this one
        pass


def run_child(command: Sequence[str]) -> int:
    """Run a program until it ends; stop signals go to it. Its exit code."""
    child = subprocess.Popen(command)

    def stop(number: int, frame: FrameType | None) -> None:
        child.send_signal(signal.SIGTERM)

    for number in SIGNALS:
        signal.signal(number, stop)
    return child.wait()
