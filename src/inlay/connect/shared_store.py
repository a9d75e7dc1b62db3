"""A store that a foreign engine may lose at any time and goes on without."""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from inlay.core.clock import Clock, SystemClock
from inlay.core.errors import ArgumentError, ConfigError, InlayError, StoreClosed, StoreError
from inlay.core.pause import Pause
from inlay.store import Contribution, Store

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class SharedStore:
    """A store of a master that may not be there yet, or no more.

    After a failure nothing is asked of it for a second, then two, up to thirty: a request of the
    engine waits for a dead store at most once a pause. Methods may be called by any thread.

    Args:
        master: as `Store.connect` takes it.
        contribute: memory of this process for the pool.
        timeout_s: of each call.
        connect: opens the store.
    """

    def __init__(
        self,
        master: str,
        *,
        contribute: Contribution | None = None,
        timeout_s: float = 5.0,
        connect: Callable[..., Store] = Store.connect,
        clock: Clock | None = None,
    ) -> None:
        self._master = master
        self._contribute = contribute
        self._timeout_s = timeout_s
        self._connect = connect
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._closed = False
        self._pause = Pause(f"the store at {master}", SystemClock() if clock is None else clock)

    @property
    def usable(self) -> bool:
        """Whether it is worth asking now."""
        return not self._closed and not self._pause.on

    def call(self, action: Callable[[Store], _T], otherwise: _T) -> _T:
        """What `action` says of the store; `otherwise` where there is none to be asked.

        Opens the store where it is not open. Never raises what a store raises: that begins a pause.
        """
        if not self.usable:
            return otherwise
        try:
            result = action(self._opened())
        except StoreClosed:
            return otherwise
        except (StoreError, OSError) as error:
            self._pause.note(error)
            return otherwise
        self._pause.note(None)
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
