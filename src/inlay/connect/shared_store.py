"""A store that a foreign engine may lose at any time and goes on without."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from inlay.core.errors import ArgumentError, ConfigError, InlayError, StoreClosed, StoreError
from inlay.store import Contribution, Store

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class SharedStore:
    """A store of a master that may not be there yet, or no more.

    After a failure nothing is asked of it for a second, then two, up to thirty: a request of the
    engine waits for a dead store at most once a pause. Methods may be called by any thread.

    Args:
        master: as `Store.connect` takes it.
        contribute: memory of this process for the pool.
        timeout_s: of each call.
        connect: opens the store; a test may give another address to it.

    Raises:
        ConfigError: what is contributed cannot be; it would not be found out later, either.
    """

    def __init__(
        self,
        master: str,
        *,
        contribute: Contribution | None = None,
        timeout_s: float = 5.0,
        connect: Callable[..., Store] = Store.connect,
    ) -> None:
        self._master = master
        self._contribute = contribute
        self._timeout_s = timeout_s
        self._connect = connect
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._closed = False
        self._pause_s = 0.0
        self._ready_at = 0.0

    @property
    def usable(self) -> bool:
        """Whether it is worth asking now."""
        return not self._closed and time.monotonic() >= self._ready_at

    def call(self, action: Callable[[Store], _T], otherwise: _T) -> _T:
        """What `action` says of the store; `otherwise` where there is none to be asked.

        Opens the store where it is not open. Never raises what a store raises; the first failure
        of a row is logged.
        """
        if not self.usable:
            return otherwise
        try:
            result = action(self._opened())
        except StoreClosed:
            return otherwise
        except (StoreError, OSError) as error:
            self._failed(error)
            return otherwise
        if self._pause_s:
            log.warning("the store at %s answers again", self._master)
            self._pause_s = 0.0
        return result

    def close(self) -> None:
        """Let go of the store; later calls find none."""
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def _opened(self) -> Store:
        with self._lock:
            if self._closed:
                raise StoreClosed("closed")
            if self._store is None:
                try:
                    self._store = self._connect(
                        self._master, contribute=self._contribute, timeout_s=self._timeout_s
                    )
                except (ArgumentError, ConfigError) as error:
                    # Nothing that waiting would mend: said once, and never asked again.
                    self._closed = True
                    log.error("no store is used: %s", error)
                    raise StoreClosed(str(error)) from error
                except InlayError as error:
                    raise (
                        error if isinstance(error, StoreError) else StoreError(str(error))
                    ) from error
            return self._store

    def _failed(self, error: Exception) -> None:
        if not self._pause_s:
            log.warning("the store at %s is left out for now: %s", self._master, error)
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        self._ready_at = time.monotonic() + self._pause_s
