"""Where a deployment keeps its logs, its secret, and the word that it runs.

Who supervises a deployment holds the lock of its directory. The system gives that back when the
process ends, however it ends, so that nothing of a killed one is taken for a deployment.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import msgspec

from inlay.cluster.control import control_address
from inlay.core.errors import DeploymentError
from inlay.core.settings import read_settings

_SOCKETS, _PREFIX = "sockets", "inlay-up-"
_MAX_SOCKET_PATH = 90  # of 107 bytes that Linux allows


class Supervised(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor writes of itself.

    Attributes:
        sockets: the private directory of its control socket.
        file: the deployment's file.
    """

    pid: int
    sockets: str
    file: str

    @property
    def control(self) -> str:
        """ZeroMQ address of the supervisor's socket."""
        return control_address(self.sockets)


class DeploymentDirectory:
    """The directory of one deployment of this user.

    Attributes:
        name: of the deployment.
        path: of the directory itself.
        logs: directory of the logs of its processes.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / name
        self.name = name
        self.logs = self.path / "logs"

    @contextmanager
    def claim(self, file: Path) -> Iterator[Supervised]:
        """Be the deployment's supervisor inside this block.

        Raises:
            DeploymentError: another process is; the message says which. Or the directory cannot be
                written to.
        """
        self.make()
        with (self.path / "lock").open("a") as lock:
            if not _locked(lock):
                raise DeploymentError(self.taken(self._read_note()))
            self._remove_stale()
            sockets = _private_directory(self.path / _SOCKETS)
            running = Supervised(pid=os.getpid(), sockets=str(sockets), file=str(file))
            try:
                _write(self._note, msgspec.json.encode(running))
                yield running
            finally:
                self._note.unlink(missing_ok=True)
                shutil.rmtree(sockets, ignore_errors=True)

    def make(self) -> None:
        """Make the directory and that of the logs, where they are not there.

        Raises:
            DeploymentError: it cannot be made, or not be written to.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
            (self.path / "lock").touch()
        except OSError as error:
            raise DeploymentError(
                f"{self.path} is for the logs and sockets of deployment {self.name!r}, and cannot "
                f"be written to ({error.strerror}): set INLAY_CACHE_DIR to a directory of yours"
            ) from None

    def running(self) -> Supervised | None:
        """Who supervises it now, or None."""
        try:
            with (self.path / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._read_note()
        except OSError:  # there is no such directory
            pass
        return None

    def taken(self, running: Supervised | None) -> str:
        """Why nobody else may supervise it."""
        who = "" if running is None else f" (process {running.pid}, from {running.file})"
        return (
            f"deployment {self.name!r} is running already{who}: stop it with inlay down "
            f"{self.name}, or give this one another name"
        )

    def secret(self) -> str:
        """The deployment's secret: drawn once, and kept in a file that only this user reads."""
        file = self.path / "secret"
        try:
            return file.read_text().strip()
        except FileNotFoundError:
            self.path.mkdir(parents=True, exist_ok=True)
            drawn = secrets.token_hex(32)
            _write(file, drawn.encode())
            return drawn

    @property
    def _note(self) -> Path:
        return self.path / "running.json"

    def _read_note(self) -> Supervised | None:
        try:
            return msgspec.json.decode(self._note.read_bytes(), type=Supervised)
        except (OSError, msgspec.MsgspecError):  # it begins or ends just now
            return None

    def _remove_stale(self) -> None:
        """Remove what a supervisor that was killed has left."""
        stale = self._read_note()
        if stale is not None and Path(stale.sockets).name.startswith((_SOCKETS, _PREFIX)):
            shutil.rmtree(stale.sockets, ignore_errors=True)


def deployments_root() -> Path:
    """Where the directories of this user's deployments are."""
    return read_settings().cache_dir / "deployments"


def find_running(root: Path, name: str | None) -> Supervised:
    """The supervisor of a deployment; without a name, of the only one that runs.

    Raises:
        DeploymentError: there is none, or there are several.
    """
    if name is not None:
        running = DeploymentDirectory(root, name).running()
        if running is not None:
            return running
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    found = {one: running for one in names if (running := DeploymentDirectory(root, one).running())}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    others = f"; running are {', '.join(found)}" if found else "; none is running"
    if name is not None:
        raise DeploymentError(f"deployment {name!r} is not running{others}")
    if not found:
        raise DeploymentError("no deployment is running: start one with inlay up FILE")
    raise DeploymentError(f"several deployments are running, say which: {', '.join(found)}")


def _locked(lock: TextIO) -> bool:
    """Take a lock; who only looks whether it is taken holds it for less than a moment."""
    for wait_s in (0.0, 0.05, 0.2):
        time.sleep(wait_s)
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _write(file: Path, data: bytes) -> None:
    """Write a file that only this user may read, as a whole."""
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(data)
    partial.replace(file)


def _private_directory(wanted: Path) -> Path:
    """A new directory that only this user may enter, with a path short enough for a socket."""
    if len(os.fsencode(wanted)) <= _MAX_SOCKET_PATH:
        shutil.rmtree(wanted, ignore_errors=True)
        wanted.mkdir(mode=0o700)
        return wanted
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
