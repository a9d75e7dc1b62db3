"""The folder inside a target in which a conversion grows, until all of it can move out at once.

Files get their final names when every one of them is whole and flushed, config.json last: without
it a directory is no model.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from inlay import __version__
from inlay.core.errors import ArgumentError, ResourceError
from inlay.core.units import format_bytes
from inlay.models.conversion.journal import Journal
from inlay.models.conversion.pieces import Product, digest_of

STAGING = ".converting"
_JOURNAL = ".journal"  # no file that is copied begins with a dot
_LAST = "config.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SPARE_BYTES = 64 << 20  # for tables, tokenizer and journal


class Staging:
    """The place of one conversion, locked. Use it as a context manager.

    Args:
        target: the directory that shall hold the model; made if missing.
        say: takes what a user should know, a line each time.

    Raises:
        ArgumentError: the target is no directory, cannot be written, or another process converts
            into it.
    """

    def __init__(self, target: Path, say: Callable[[str], None]) -> None:
        if target.exists() and not target.is_dir():
            raise ArgumentError(f"{target} is a file: name a directory")
        self._target, self._say = target, say
        self._made_target, self._finished = not target.exists(), False
        self.directory = target / STAGING
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(
                f"{target} cannot be written ({error.strerror}): name another directory"
            ) from error
        self.journal = Journal(self.directory / _JOURNAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._finished and self.journal.identity is None:
            self._remove()
            if self._made_target:
                with suppress(OSError):
                    self._target.rmdir()
        self.journal.close()

    def begin(self, product: Product, source_stamp: str) -> bool:
        """Go on with a product, or begin; false where the target holds it already.

        Args:
            source_stamp: another one means that the source's files were changed since.

        Raises:
            ArgumentError: the target holds something else.
            ResourceError: the disk is too small for what is to come.
        """
        journal = self.journal
        identity = {
            **product.identity,
            "files": source_stamp,
            "version": __version__,
            "parts": digest_of(product.pieces),
        }
        if journal.identity is not None and journal.identity != identity:
            changed = [key for key, value in identity.items() if journal.identity.get(key) != value]
            self._say(
                f"{self._target} holds the beginning of another conversion (differs in "
                f"{', '.join(changed)}): beginning anew"
            )
            self._clear()
        if journal.sealed:
            return True
        if others := sorted(one.name for one in self._target.iterdir() if one.name != STAGING):
            if journal.identity is None and product.is_in(self._target):
                return False
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            raise ArgumentError(
                f"{self._target} holds {', '.join(others[:3])}{more}, which is not of this "
                "conversion: name a new directory, or empty this one"
            )
        if journal.identity is None:
            self._clear()
        self._check_space(product)
        if journal.identity is None:
            journal.begin(identity)
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Tell of a disk that becomes full as what it is."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise ResourceError(
                f"{self._target} cannot grow ({error.strerror}): free some of the disk; the same "
                "call goes on where it was"
            ) from error

    @contextmanager
    def files(self, sizes: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
        """Open files of these sizes, by name; what they hold already stays."""
        with ExitStack() as stack:
            files = {}
            for name, size in sizes.items():
                fd = os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                stack.callback(os.close, fd)
                os.ftruncate(fd, size)
                files[name] = fd
            yield files

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        with (self.directory / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def seal(self) -> None:
        """Note that all is there and flushed."""
        _flush_directory(self.directory)
        self.journal.seal()

    def finish(self) -> None:
        """Give everything its final name, and leave nothing else."""
        names = sorted(file.name for file in self.directory.iterdir() if file.name != _JOURNAL)
        for name in sorted(names, key=_LAST.__eq__):
            if name == _LAST:  # whose name says that all others are there, after a power cut, too
                _flush_directory(self._target)
            (self.directory / name).replace(self._target / name)
        _flush_directory(self._target)
        self._remove()
        self._finished = True

    def _check_space(self, product: Product) -> None:
        there = sum(
            (self.directory / name).stat().st_blocks * 512
            for name in product.files
            if (self.directory / name).exists()
        )
        needed = sum(product.files.values()) + _SPARE_BYTES - there
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            raise ResourceError(
                f"{self._target} needs {format_bytes(needed)} of disk, and {format_bytes(free)} "
                "are free: free some, or name a directory on a larger disk"
            )

    def _clear(self) -> None:
        self.journal.clear()
        self._empty()

    def _empty(self) -> None:
        for file in self.directory.iterdir():
            if file.name != _JOURNAL:
                file.unlink()

    def _remove(self) -> None:
        self._empty()
        self.journal.remove()
        with suppress(OSError):  # the next conversion may have begun
            self.directory.rmdir()


def _flush_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
