"""The adapters that an engine serves, by name: loaded beside its steps, and dropped when unused."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from inlay.core.errors import (
    AdapterInUseError,
    AdapterNotFoundError,
    EngineError,
    InlayError,
    RequestError,
)
from inlay.core.messages import AdapterAnswer
from inlay.core.near_names import did_you_mean
from inlay.core.units import format_bytes
from inlay.engine.live import LiveRequest
from inlay.models.adapter_weights import AdapterWeights

log = logging.getLogger(__name__)


class Adapters:
    """See the module. All methods are the engine thread's.

    Args:
        read: brings an adapter of a directory into memory; called in another thread.
        forget: lets go of one that was unloaded, in other ranks, too.
        live: the engine's requests.
        on_ready: called from another thread when one is in memory, or will not be.
    """

    def __init__(
        self,
        read: Callable[[Path], AdapterWeights],
        forget: Callable[[AdapterWeights], None],
        live: Mapping[str, LiveRequest],
        on_ready: Callable[[], None] | None,
    ) -> None:
        self._read, self._forget = read, forget
        self._live, self._on_ready = live, on_ready
        self._loaded: dict[str, AdapterWeights] = {}
        self._loading: dict[str, Future[AdapterWeights]] = {}
        self._thread = ThreadPoolExecutor(1, "adapters")

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of the content of those that are served, by name."""
        return {name: adapter.fingerprint for name, adapter in self._loaded.items()}

    def find(self, name: str) -> AdapterWeights | None:
        """The adapter of a request; None: it wants the model's own weights.

        Raises:
            AdapterNotFoundError: none has the name.
        """
        if not name:
            return None
        self._check(name, "model")
        return self._loaded[name]

    def begin(self, name: str, path: str) -> None:
        """Start to load one; `take_answers` says how it went.

        Raises:
            RequestError: the name is empty, or in use.
        """
        if not name:
            raise RequestError("the adapter has no name: give it one", "lora_name")
        if name in self._loaded or name in self._loading:
            raise RequestError(
                f"an adapter {name!r} is loaded already: unload it, or choose another name",
                "lora_name",
            )
        future = self._thread.submit(self._timed, name, Path(path))
        self._loading[name] = future
        if self._on_ready is not None:
            ready = self._on_ready
            future.add_done_callback(lambda _: ready())

    def load(self, name: str, path: str) -> None:
        """Load one and wait for it.

        Raises:
            RequestError: as `begin`.
            ModelError: as `Model.load_adapter`.
        """
        self.begin(name, path)
        self._loaded[name] = self._loading.pop(name).result()

    def unload(self, name: str) -> None:
        """Forget one.

        Raises:
            AdapterNotFoundError: none has the name.
            AdapterInUseError: requests use it.
        """
        self._check(name, "lora_name")
        users = sum(request.message.adapter == name for request in self._live.values())
        if users:
            raise AdapterInUseError(
                f"adapter {name!r} is used by {users} running requests: unload it when they have "
                "ended",
                "lora_name",
            )
        self._forget(self._loaded.pop(name))

    def take_answers(self) -> list[AdapterAnswer]:
        """Of those that were begun and are over now, each once."""
        answers = []
        for name in [name for name, future in self._loading.items() if future.done()]:
            future = self._loading.pop(name)
            error = future.exception()
            if error is None:
                self._loaded[name] = future.result()
                answers.append(AdapterAnswer(name, fingerprint=self._loaded[name].fingerprint))
                continue
            if not isinstance(error, InlayError):
                log.error("adapter %r cannot be loaded", name, exc_info=error)
                error = EngineError(f"adapter {name!r} cannot be loaded: {error!r}")
            answers.append(AdapterAnswer(name, error.code, str(error)))
        return answers

    def close(self) -> None:
        """End the thread; what it reads now is read to the end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _check(self, name: str, param: str) -> None:
        if name not in self._loaded:
            there = ", ".join(map(repr, self._loaded)) or "none"
            near = did_you_mean(name, self._loaded)
            raise AdapterNotFoundError(
                f"there is no adapter {name!r} here (loaded: {there}): {near or 'load it first'}",
                param,
            )

    def _timed(self, name: str, directory: Path) -> AdapterWeights:
        began_s = time.monotonic()
        adapter = self._read(directory)
        log.info(
            "adapter %r from %s: %s in %.1f s",
            name,
            directory,
            format_bytes(adapter.nbytes),
            time.monotonic() - began_s,
        )
        return adapter
