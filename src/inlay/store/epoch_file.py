"""The epoch of a master that stands alone, in a file of its own."""

import fcntl
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from inlay.core.errors import ConfigError, StoreUnavailable
from inlay.core.text_files import read_json_object
from inlay.store.succession import FOREVER, Reign, Succession

_REMEDY = "remove it; nodes tell the master what they have seen"


class EpochFile(Succession):
    """See `Succession`. One process has the file at a time.

    A file that is lost is no danger: nodes tell a master that they have seen a later one.

    Raises:
        ConfigError: the file is damaged, or cannot be made.
        StoreUnavailable: another master has it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(file.with_name(f"{file.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"the master's file {file} cannot be made: {error}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreUnavailable(
                f"another master has {file}: stop it, or give this one another --state"
            ) from None
        self._epoch, self._nodes = self._read()

    def begin(self, stop: threading.Event, *, above: int = 0) -> Reign | None:
        """See `Succession`. Returns at once."""
        self._epoch = max(self._epoch, above) + 1
        self._write()
        return Reign(epoch=self._epoch, nodes=self._nodes, until=FOREVER)

    def renew(self, nodes: Sequence[str]) -> float | None:
        """See `Succession`."""
        if tuple(nodes) != self._nodes:
            self._nodes = tuple(nodes)
            try:
                self._write()
            except OSError as error:
                raise StoreUnavailable(
                    f"the master's file {self._file} cannot be written: {error}"
                ) from None
        return FOREVER

    def end(self) -> None:
        """See `Succession`. The file may be taken by another process."""
        os.close(self._lock)

    def _read(self) -> tuple[int, tuple[str, ...]]:
        try:
            found = read_json_object(self._file, remedy=_REMEDY, error=ConfigError)
        except FileNotFoundError:
            return 0, ()
        try:
            epoch, nodes = int(found["epoch"]), tuple(map(str, found["nodes"]))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{self._file} holds no epoch ({type(error).__name__}: {error}): {_REMEDY}"
            ) from None
        return epoch, nodes

    def _write(self) -> None:
        """Written beside, synced and renamed: after a power cut it is the old or the new one."""
        body = json.dumps({"epoch": self._epoch, "nodes": self._nodes}).encode()
        new = self._file.with_name(f"{self._file.name}.new")
        with new.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._file)
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
