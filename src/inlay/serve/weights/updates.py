"""New weights for a server: pulled from their publishers, then put in place by the engine."""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from inlay.core.errors import (
    ArgumentError,
    InlayError,
    ModelFileError,
    RequestError,
    TransferError,
    UnsupportedModelError,
    WeightsConflictError,
    WeightsError,
    WeightsMismatchError,
)
from inlay.core.messages import (
    EngineStats,
    InFlight,
    ResumeKv,
    Rollout,
    RolloutHandle,
    WeightsSwapped,
)
from inlay.serve.metrics import DONE, ServerMetrics
from inlay.serve.weights.config import UpdateConfig

if TYPE_CHECKING:
    from inlay.transfer import TransferEngine
    from inlay.weights import Held

BESIDE = ("config.json", "generation_config.json")


class Weighted(Protocol):
    """Whose weights they are: an engine's client, or a dispatcher."""

    async def stats(self) -> EngineStats:
        """Gauges and totals now."""
        ...

    async def swap_weights(
        self, directory: Path, version: str, in_flight: InFlight = "finish"
    ) -> WeightsSwapped:
        """Replace them while it serves; an error of the answer says that some have the new ones."""
        ...

    async def pause_rollouts(self, request_ids: Sequence[str] | None = None) -> list[Rollout]:
        """Stop requests, or all, until they are resumed."""
        ...

    async def resume_rollouts(
        self, handles: Sequence[RolloutHandle] | None = None, kv: ResumeKv = "keep"
    ) -> list[str]:
        """Let paused requests, or all, go on; returns their ids."""
        ...


class Updates:
    """One update at a time; requests are served meanwhile.

    Args:
        engine: whose weights they are.
        served: the directory of the model that is served, from which `config.json` comes where
            publishers have tensors alone.
        metrics: count updates.
        many: it is many engines: what has been pulled may be put in place again, where some of them
            have not taken it.
    """

    def __init__(
        self,
        engine: Weighted,
        config: UpdateConfig,
        served: Path | None,
        metrics: ServerMetrics,
        *,
        many: bool = False,
    ) -> None:
        self.engine = engine
        self._many = many
        self._metrics = metrics
        self._config = config
        self._served = served
        self._transfer: TransferEngine | None = None
        self._temporary: Path | None = None
        self._held: Held | None = None
        self._newest: Held | None = None  # which may not serve yet
        self._busy = False
        self._made = False  # the directory of the version that is pulled
        self._pulled_bytes = 0
        self._outcome = DONE

    async def from_publishers(
        self,
        publishers: Sequence[str],
        name: str,
        version: str | None,
        in_flight: InFlight,
    ) -> tuple[WeightsSwapped, dict[str, int]]:
        """Pull a version and serve it; also returns the bytes that each holder sent.

        Of many engines some may not have taken it: then the answer has an error.

        Raises:
            WeightsConflictError: another update is under way, it is served already, or publishers
                have no common version.
            RequestError: a publisher's address is none.
            WeightsError: it cannot be pulled.
            WeightsMismatchError: it is of another model. The old weights serve on in each case.
        """
        with self._alone():
            before = self._held
            try:
                held = await asyncio.to_thread(self._pull, publishers, name, version)
            except ArgumentError as error:
                raise RequestError(str(error), "publishers") from None
            except TransferError as error:
                raise WeightsError(f"{error}: is a publisher running there?") from error
            version, directory = held.manifest.version, self._directory(held.manifest.version)
            self._newest = held
            if held is before:
                return await self._swap(directory, version, in_flight), {}
            self._pulled_bytes = sum(held.report.taken_bytes.values())
            try:
                swapped = await self._swap(directory, version, in_flight)
            except BaseException:
                await asyncio.to_thread(held.close)
                if self._made:
                    shutil.rmtree(directory, ignore_errors=True)
                raise
            await asyncio.to_thread(self._replace, held)
            return swapped, held.report.taken_bytes

    async def from_directory(
        self, directory: Path, version: str, in_flight: InFlight
    ) -> WeightsSwapped:
        """Serve weights that lie on this host. Raises as `from_publishers`."""
        from inlay.weights import check_label

        check_label(version, "version")
        with self._alone():
            return await self._swap(directory, version, in_flight)

    def release(self) -> None:
        """Offer the newest version to its publishers' peers no more, so that others may do it."""
        if self._newest is not None:
            self._newest.close()

    def close(self) -> None:
        """Offer nothing any more; what was pulled into a temporary directory goes."""
        if self._held is not None:
            self._held.close()
        if self._transfer is not None:
            self._transfer.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One at a time, and counted."""
        if self._busy:
            raise WeightsConflictError("an update is under way: update again when it has ended")
        self._busy, self._pulled_bytes, self._outcome = True, 0, DONE
        began_s, outcome = time.monotonic(), "cancelled"
        try:
            yield
            outcome = self._outcome
        except Exception as error:
            outcome = error.code if isinstance(error, InlayError) else "internal_error"
            raise
        finally:
            self._busy = False
            seconds = time.monotonic() - began_s
            self._metrics.weights_updated(outcome, seconds, self._pulled_bytes)

    async def _swap(self, directory: Path, version: str, in_flight: InFlight) -> WeightsSwapped:
        try:
            swapped = await self.engine.swap_weights(directory, version, in_flight)
        except (ModelFileError, UnsupportedModelError) as error:
            raise WeightsMismatchError(str(error)) from error
        self._outcome = swapped.error_code or DONE
        return swapped

    def _pull(self, publishers: Sequence[str], name: str, version: str | None) -> "Held":
        from inlay.store.tenants import read_token
        from inlay.transfer import TransferConfig, TransferEngine
        from inlay.weights import DirectoryLanding, check_label, newest, pull

        if self._transfer is None:
            file = self._config.token_file
            self._transfer = TransferEngine(
                self._config.listen,
                token=read_token(None if file is None else Path(file)),
                config=TransferConfig(traffic_class="background"),
            )
        version = version or newest(self._transfer, publishers, name)
        if version is None:
            raise WeightsConflictError(f"{', '.join(publishers)} have no common version of {name}")
        if self._held is not None and self._held.manifest.version == version:
            if self._many:
                return self._held
            raise WeightsConflictError(f"{name} {version} is served already")
        # What is at this path is replaced: it must not lead out of the directory of versions.
        target = self._directory(check_label(version, "version"))
        self._made = not target.exists()
        held = pull(
            self._transfer,
            publishers,
            name,
            landing=DirectoryLanding(target, dtype=self._config.dtype, replace=True),
            version=version,
            previous=self._held,
        )
        try:
            self._add_beside(target)
        except OSError as error:
            held.close()
            if self._made:
                shutil.rmtree(target, ignore_errors=True)
            raise WeightsError(
                f"{error.filename}: {error.strerror}; make room and update again"
            ) from error
        return held

    def _add_beside(self, target: Path) -> None:
        """Files that publishers of tensors have not."""
        for file_name in BESIDE:
            source = None if self._served is None else self._served / file_name
            if source is not None and source.is_file() and not (target / file_name).exists():
                shutil.copyfile(source, target / file_name)

    def _directory(self, version: str) -> Path:
        if self._config.directory is not None:
            return Path(self._config.directory) / version
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="inlay-weights-"))
        return self._temporary / version

    def _replace(self, held: "Held") -> None:
        """Others have the new version from here; the engine keeps what it has mapped of the old."""
        old, self._held = self._held, held
        if old is not None:
            old.close()
            shutil.rmtree(self._directory(old.manifest.version), ignore_errors=True)
