"""New weights in place of those that serve, between two steps.

They are loaded beside the old ones, by threads, while steps go on; what is made of equal tensors is
shared, and the rest is in memory twice for a while. Each weights have a number, and each request
that of those that compute it. Blocks of the cache are named by the version, so nobody takes KV of
other weights for their own.
"""

import hashlib
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inlay.cache import PagedKvCache
from inlay.core.block_hash import Namespace
from inlay.core.errors import (
    EngineError,
    InlayError,
    WeightsConflictError,
    WeightsError,
    WeightsMismatchError,
)
from inlay.core.messages import InFlight, WeightsSwapped
from inlay.core.model_config import read_shape
from inlay.core.model_shape import ModelShape
from inlay.core.units import format_bytes
from inlay.engine.live import Choice, LiveRequest
from inlay.engine.loading import LoadedModel
from inlay.engine.requests import Requests
from inlay.engine.runner import Runner
from inlay.engine.scheduler import Scheduler
from inlay.models.memory import give_back_freed
from inlay.models.model import Model

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

_VERSION_BYTES = 6  # of its number in names of blocks, which JSON keeps exactly


class WeightUpdates:
    """See the module. All but the loading is done by the engine's thread.

    Args:
        namespace: of blocks now.
        on_ready: called from another thread when new weights are in memory.

    Attributes:
        namespace: of blocks that are named from now on, without a tenant.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        namespace: Namespace,
        *,
        cache: PagedKvCache,
        runner: Runner,
        requests: Requests,
        scheduler: Scheduler,
        on_ready: Callable[[], None] | None,
    ) -> None:
        self._versions = {0: ""}
        self.namespace = namespace
        self._loaded = loaded
        self._model = loaded.model
        self._cache, self._runner = cache, runner
        self._requests, self._scheduler = requests, scheduler
        self._on_ready = on_ready
        self._update: _Update | None = None
        self._done: list[WeightsSwapped] = []

    @property
    def version(self) -> str:
        """Of the weights that compute new requests; empty: those that were loaded first."""
        return self._versions[self._requests.weights]

    def version_of(self, request: LiveRequest) -> str:
        """Of the weights that compute it."""
        return self._versions[request.weights]

    @property
    def due(self) -> bool:
        """Whether `poll` would do something."""
        return self._update is not None and self._update.done.is_set()

    def refusal(self) -> WeightsConflictError:
        """Of a request that is for other weights."""
        return WeightsConflictError(
            f"this engine computes by weights {self.version or 'that were loaded first'}, and the "
            "request is for others: send it to an instance that has them"
        )

    def begin(
        self, weights: "Path | Mapping[str, Tensor]", version: str, in_flight: InFlight
    ) -> None:
        """Load weights; `poll` puts them in place when they are there.

        Args:
            weights: a directory, or all tensors by name, which are written to a temporary one.

        Raises:
            WeightsConflictError: others are being loaded.
            WeightsError: this engine cannot replace its weights.
            WeightsMismatchError: they are of another model.
            ModelError: there are none in this directory.
        """
        if self._update is not None:
            raise WeightsConflictError(
                f"weights {self._update.version} are being loaded: update again when they are there"
            )
        reload = self._loaded.reload
        if reload is None:
            raise WeightsError(
                "weights are replaced where the model was loaded from a directory: this one was not"
            )
        if not version:
            raise WeightsError("weights need a version, which names their blocks: give one")
        if isinstance(weights, Mapping):
            assert self._loaded.directory is not None, "what can be reloaded lies somewhere"
            reload = _reload_written(weights, self._loaded.directory, reload)
            weights = self._loaded.directory
        _check_shape(weights, self._model.shape)
        number = self._requests.weights + 1
        load = partial(reload, weights, self._model, number)
        self._update = _Update(number, version, in_flight, load, self._on_ready)

    def poll(self) -> None:
        """Between two steps: put weights in place that have come."""
        update = self._update
        if update is None or not update.done.is_set():
            return
        self._update = None
        try:
            self._take(update)
        except InlayError as error:
            log.error("weights %s are not taken: %s", update.version, error)
            if self._loaded.ranks is not None:
                self._loaded.ranks.keep(self._needed())
            self._done.append(
                WeightsSwapped(
                    version=update.version,
                    seconds=update.seconds,
                    error=str(error),
                    error_code=error.code,
                )
            )
        else:
            made_bytes = self._model.made_bytes
            log.info(
                "weights %s serve, after %.1f s; %s of them are new",
                update.version,
                update.seconds,
                format_bytes(made_bytes),
            )
            self._done.append(
                WeightsSwapped(
                    version=update.version, seconds=update.seconds, made_bytes=made_bytes
                )
            )

    def take_done(self) -> list[WeightsSwapped]:
        """What became of updates, each once."""
        done, self._done = self._done, []
        return done

    def wait(self) -> None:
        """Until the weights that are being loaded are there, or have failed."""
        if self._update is not None:
            self._update.done.wait()

    def restart(self, request: LiveRequest, choice: Choice) -> None:
        """Compute a choice by the newest weights, from its beginning; its tokens stay."""
        request.weights, request.mixed = self._requests.weights, False
        self._scheduler.rename(choice, lambda: self._cache.names(*request.names_depend_on))

    def go_on(self, request: LiveRequest) -> None:
        """Compute a request by the newest weights, with the KV that it has of older ones."""
        request.weights, request.mixed = self._requests.weights, True

    def is_old(self, request: LiveRequest) -> bool:
        """Whether it was begun by other weights than the newest."""
        return request.weights != self._requests.weights

    def _take(self, update: "_Update") -> None:
        if update.error is not None:
            raise update.error
        model = update.model
        assert model is not None
        old = self._model
        _check_model(old, model, self._loaded)
        if old.host_share is not None and model.host_share is not None:
            model.host_share.deferred = old.host_share.deferred
        number = update.number
        self._runner.take_model(number, model)
        self._model, self._versions[number] = model, update.version
        self._requests.weights = number
        self.namespace = msgspec.structs.replace(
            self.namespace,
            fingerprint=model.fingerprint,
            weight_version=_number_of(update.version),
        )
        self._cache.forget_keys()
        for request in list(self._requests.live.values()):
            self._carry_over(request, update.in_flight)
        self.let_go()

    def _carry_over(self, request: LiveRequest, in_flight: InFlight) -> None:
        """What becomes of a request that was there before. One that is paused: `resume` says."""
        message = request.message
        if message.weights and not request.choices:
            # Its grammar is being compiled; another instance may have begun with its prompt.
            self._requests.fail(request, self.refusal())
            return
        choices = [one for one in request.choices if one.state in ("waiting", "running")]
        if any(choice.state == "paused" for choice in request.choices):
            return
        if message.phase == "prefill" or any(one.state == "receiving" for one in request.choices):
            return  # both instances end it under the weights that it was sent for
        # To whoever says which weights it is for, it has begun.
        begun = request.scheduled_s is not None or bool(message.weights)
        if begun and in_flight == "finish":
            return
        if begun and in_flight == "continue":
            self.go_on(request)
            return
        request.weights = self._requests.weights
        for choice in choices:
            self.restart(request, choice)

    def let_go(self) -> None:
        """Of weights that compute no request any more. O(live requests) while there are such."""
        if self._runner.num_models == 1:
            return
        needed = self._needed()
        if not self._runner.keep_models(needed):
            return
        if self._loaded.ranks is not None:
            self._loaded.ranks.keep(needed)
        give_back_freed()

    def _needed(self) -> set[int]:
        """Weights that compute a request, or will."""
        needed = {self._requests.weights}
        if self._update is not None:
            needed.add(self._update.number)
        for request in self._requests.live.values():
            if any(choice.state not in ("paused", "finished") for choice in request.choices):
                needed.add(request.weights)
        return needed


class _Update:
    """One load, in a thread of its own."""

    def __init__(
        self,
        number: int,
        version: str,
        in_flight: InFlight,
        load: Callable[[], Model],
        on_ready: Callable[[], None] | None,
    ) -> None:
        self.number = number
        self.version = version
        self.in_flight: InFlight = in_flight
        self.model: Model | None = None
        self.error: InlayError | None = None
        self.done = threading.Event()
        self._began_s = time.monotonic()
        self.seconds = 0.0

        def run() -> None:
            try:
                self.model = load()
            except InlayError as error:
                self.error = error
            except Exception as error:
                log.exception("weights %s cannot be loaded", version)
                self.error = EngineError(f"weights {version} cannot be loaded: {error!r}")
            self.seconds = time.monotonic() - self._began_s
            self.done.set()
            if on_ready is not None:
                on_ready()

        threading.Thread(target=run, name="inlay-weights", daemon=True).start()


def _reload_written(
    tensors: "Mapping[str, Tensor]", beside: Path, reload: Callable[[Path, Model, int], Model]
) -> Callable[[Path, Model, int], Model]:
    """Write tensors, load them, and forget the file, whose mapped pages stay as long as needed."""
    from safetensors.torch import save_file  # whoever has tensors has loaded torch

    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def load(_: Path, previous: Model, number: int) -> Model:
        with tempfile.TemporaryDirectory(prefix="inlay-weights-") as directory:
            save_file(kept, Path(directory) / "model.safetensors")
            kept.clear()
            shutil.copyfile(beside / "config.json", Path(directory) / "config.json")
            return reload(Path(directory), previous, number)

    return load


def _number_of(version: str) -> int:
    """The version in names of blocks; never 0, which is of weights that were loaded first."""
    digest = hashlib.blake2b(version.encode(), digest_size=_VERSION_BYTES).digest()
    return int.from_bytes(digest, "big") or 1


def _check_shape(directory: Path, own: ModelShape) -> None:
    shape = read_shape(directory)
    if shape == own:
        return
    names = [
        name for name in own.__dataclass_fields__ if getattr(own, name) != getattr(shape, name)
    ]
    different = "; ".join(
        f"{name} {getattr(shape, name)!r} instead of {getattr(own, name)!r}" for name in names[:4]
    )
    raise WeightsMismatchError(
        f"{directory} is another model than the one that is served: {different}"
    )


def _check_model(old: Model, new: Model, loaded: LoadedModel) -> None:
    kv_format = loaded.kv_format
    mine = new.kv_format(dtype=kv_format.dtype, page_tokens=kv_format.page_tokens)
    if new.weight_format != old.weight_format or mine != kv_format:
        raise WeightsMismatchError(
            f"the new weights are held as {new.weight_format} with KV {mine}, those that serve as "
            f"{old.weight_format} with KV {kv_format}: publish them in the same dtype, or start "
            "with weight_format set"
        )
