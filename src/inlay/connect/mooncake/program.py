"""What the programs of this package have in common: signals, and errors in one line."""

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from inlay.core.errors import InlayError
from inlay.core.stop_signals import STOP_SIGNALS


def run_program(serve: Callable[[Sequence[str]], int], argv: Sequence[str]) -> NoReturn:
    """Run it and leave; an error of Inlay is its message alone, and code 1."""
    try:
        code = serve(argv)
    except InlayError as error:
        sys.exit(f"error: {error}")
    sys.exit(code)


def run_child(command: Sequence[str]) -> int:
    """Run a program until it ends; stop signals go to it. Its exit code."""
    child = subprocess.Popen(command)

    def stop(number: int, frame: FrameType | None) -> None:
        child.send_signal(signal.SIGTERM)

    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    return child.wait()
