"""Ctrl-C and SIGTERM, for programs that have nothing to do but wait for them."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], None]]:
    """Catch them until the block ends; yields what returns when one has come, before or then.

    Only in the main thread. Idle meanwhile: whichever thread the system gives the signal to, Python
    writes it into a socket at once.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = {number: signal.signal(number, _caught) for number in STOP_SIGNALS}
        descriptor = signal.set_wakeup_fd(writer.fileno())

        def wait() -> None:
            while reader.recv(1)[0] not in STOP_SIGNALS:
                pass

        try:
            yield wait
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)


def _caught(number: int, frame: object) -> None:
    """The socket has it."""
