"""A process that ends with its parent, whatever it is doing."""

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable

_EXIT_GRACE_S = 2.0


class ParentWatch:
    """Ends this process when the parent closes standard input or dies.

    A thread waits for both, so that loading a model or a long step does not delay the end. It
    first asks the main loop to return; if that takes too long, the process ends anyway.

    Args:
        parent_pid: of the parent; where it is another one already, the process ends at once.
        last_act: called before the process ends without the main loop's help.

    Attributes:
        wake: an eventfd that becomes readable when the main loop is to return. Others may write to
            it, too, to wake the loop.
        stopping: set before `wake` is written.
    """

    def __init__(self, parent_pid: int, last_act: Callable[[], None] = lambda: None) -> None:
        self._parent_pid = parent_pid
        self._last_act = last_act
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stopping = threading.Event()
        threading.Thread(target=self._run, name="inlay-parent-watch", daemon=True).start()

    def _run(self) -> None:
        watched = [sys.stdin.fileno()]
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(self._parent_pid))
        if os.getppid() == self._parent_pid:
            select.select(watched, [], [])
        self.stopping.set()
        os.eventfd_write(self.wake, 1)
        time.sleep(_EXIT_GRACE_S)
        with contextlib.suppress(Exception):
            self._last_act()
        os._exit(0)
