"""Versions that an instance has pulled to its machine, and holds for others."""

import contextlib
import hashlib
import logging
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from inlay.core.errors import TransferError, WeightsError
from inlay.core.settings import read_settings
from inlay.engine.weight_source import PulledWeights
from inlay.engine.wire import WorkerSetup

if TYPE_CHECKING:
    from inlay.transfer import TransferEngine
    from inlay.weights import Held, Publisher

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1:0"
_CLOSE_S = 2.0


class PulledVersions:
    """`inlay.engine.weight_source.WeightSource` of one instance. Nothing is opened before a pull.

    Versions lie in a directory of the instance below Inlay's cache directory; what a killed process
    of the same name has left there is removed.

    Args:
        setup: of the instance, whose host others reach and whose secret they know.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        config, instance = setup.config, setup.instance
        assert instance is not None
        self._beside = config.exchange or _LOOPBACK
        self._secret = config.cache.secret
        name = f"{self._secret} {instance.name}".encode()
        own = hashlib.blake2b(name, digest_size=8).hexdigest()
        self._directory = read_settings().cache_dir.absolute() / "instances" / own
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inlay-pulls")
        self._engine: TransferEngine | None = None
        self._publisher: Publisher | None = None
        self._held: dict[str, Held] = {}

    def pull(self, version: str, holders: Sequence[str]) -> "Future[PulledWeights]":
        """See `WeightSource`."""
        return self._thread.submit(self._pull, version, tuple(holders))

    def keep(self, version: str) -> None:
        """See `WeightSource`."""
        self._thread.submit(self._drop_others, version)

    def close(self) -> None:
        """See `WeightSource`. What is being pulled is not waited for."""
        with contextlib.suppress(TimeoutError):
            self._thread.submit(self._close).result(_CLOSE_S)

    def _pull(self, version: str, holders: Sequence[str]) -> PulledWeights:
        from inlay.serve.weights.deployed import CHECKPOINT, label, open_engine
        from inlay.weights import DirectoryLanding, Publisher, pull

        if self._engine is None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory.mkdir(parents=True)
            self._engine = open_engine(self._beside, self._secret)
        if self._publisher is None:  # others tell it who pulls from here
            self._publisher = Publisher(self._engine, CHECKPOINT)
        directory = self._directory / label(version)
        previous = next(iter(self._held.values()), None)
        failures = []
        for holder in () if version in self._held else holders:
            try:
                self._held[version] = held = pull(
                    self._engine,
                    [holder],
                    CHECKPOINT,
                    landing=DirectoryLanding(directory),
                    version=label(version),
                    previous=previous,
                )
            except (TransferError, WeightsError) as error:
                failures.append(f"{holder}: {error}")
                continue
            log.info("weights %s: %s", version, held.report)
            break
        if version not in self._held:
            raise WeightsError(
                f"weights {version} are not on this machine and cannot be pulled "
                f"({'; '.join(failures)}): set weights.listen of the dispatchers to an address "
                "that instances reach"
            )
        return PulledWeights(directory=directory, held_at=self._engine.address)

    def _drop_others(self, version: str) -> None:
        from inlay.serve.weights.deployed import label

        for other in self._held.keys() - {version}:
            self._held.pop(other).close()
            # The engine keeps what it has mapped.
            shutil.rmtree(self._directory / label(other), ignore_errors=True)

    def _close(self) -> None:
        if self._engine is None:
            return
        shutil.rmtree(self._directory, ignore_errors=True)
        for held in self._held.values():
            held.close()
        if self._publisher is not None:
            self._publisher.close()
        with contextlib.suppress(TransferError, TimeoutError):
            self._engine.close()
