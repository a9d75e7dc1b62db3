"""The word that a thread is to end, which finalizers may give."""

import queue


class Ending:
    """Said once, heard by one thread.

    A finalizer runs wherever Python collects objects, also in the middle of the very thread that
    is to end: the lock of a `threading.Event` may be held there, and would be waited for for ever.
    """

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[None] = queue.SimpleQueue()

    def say(self) -> None:
        """From any thread, in the middle of anything. Again changes nothing."""
        self._said.put(None)

    def heard(self, timeout_s: float) -> bool:
        """Wait so long for it; whether it was said. For the one thread, until it has heard."""
        try:
            self._said.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True
