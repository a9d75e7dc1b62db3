"""Folders that are there as a whole or not at all, whatever ends the process."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inlay.core.errors import ConfigError, ModelFileError, ResourceError
from inlay.core.text_files import read_json_object

CHECKSUMS = "checksums.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NEW = ".new"


def check_writable(folder: Path, key: str) -> None:
    """Make a folder, if it is not there, and see that it takes files.

    Args:
        key: the setting that names it, for the message.

    Raises:
        ConfigError: it does not.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{key}={folder}: no file can be written there ({error.strerror}): name another folder"
        ) from error


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to, which gets its name when all in it is flushed; what was there goes.

    Raises:
        ResourceError: the disk is full; nothing is left of it, and what was there stays.
    """
    growing = folder.with_name(f".{folder.name}{_NEW}")
    shutil.rmtree(growing, ignore_errors=True)
    growing.mkdir(parents=True)
    try:
        yield growing
        _seal(growing)
        if folder.exists():
            shutil.rmtree(folder)
        growing.rename(folder)
        flush(folder.parent)
    except OSError as error:
        shutil.rmtree(growing, ignore_errors=True)
        if error.errno not in _FULL:
            raise
        raise ResourceError(
            f"{folder} cannot be written ({error.strerror}): free some of the disk; a run goes on "
            "from its newest checkpoint with resume_from_checkpoint=true"
        ) from error
    except BaseException:
        shutil.rmtree(growing, ignore_errors=True)
        raise


def write_whole(file: Path, data: bytes) -> None:
    """Replace a file: readers see what was there, or all of the new one."""
    growing = file.with_name(f".{file.name}{_NEW}")
    growing.write_bytes(data)
    flush(growing)
    growing.replace(file)


def check_folder(folder: Path) -> None:
    """Compare all files with their checksums.

    Raises:
        ModelFileError: one is missing or damaged; names it.
    """
    try:
        expected = read_json_object(folder / CHECKSUMS, remedy="it is not as it was written")
    except OSError as error:
        raise ModelFileError(f"{folder / CHECKSUMS} cannot be read ({error})") from error
    for name, digest in expected.items():
        try:
            found = _digest(folder / name)
        except OSError as error:
            raise ModelFileError(f"{folder / name} cannot be read ({error})") from error
        if found != digest:
            raise ModelFileError(f"{folder / name} is not as it was written")


def flush(place: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk."""
    fd = os.open(place, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _seal(folder: Path) -> None:
    digests = {file.name: _digest(file) for file in sorted(folder.iterdir())}
    (folder / CHECKSUMS).write_text(json.dumps(digests, indent=2), "utf-8")
    for file in folder.iterdir():
        flush(file)
    flush(folder)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()
