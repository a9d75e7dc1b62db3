"""What an instance's process says to its launcher: lines of JSON on standard output."""

import contextlib
import os
import sys
from collections.abc import Callable

import msgspec

from inlay.core.instance_setup import InstanceLine


def speak_to_launcher() -> Callable[[InstanceLine], None]:
    """Speak to the launcher by standard output from now on; what others print goes to the log."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(line: InstanceLine) -> None:
        with contextlib.suppress(OSError):  # it may not listen any more
            answers.write(msgspec.json.encode(line) + b"\n")
            answers.flush()

    return say
