"""A directory as the place where a version lands."""

import mmap
import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inlay.core.errors import WeightsError, WeightsMismatchError
from inlay.core.lock_file import open_locked
from inlay.transfer import Segment, TransferEngine
from inlay.weights.boxes import Box
from inlay.weights.dtypes import check_conversion, raw_dtype
from inlay.weights.file_layout import FileLayout
from inlay.weights.landing import Bytes, RingLanding
from inlay.weights.manifest import Entry, Manifest, count
from inlay.weights.offer import Stretch, deregister, segment_name
from inlay.weights.parts_landing import put_run

SAFETENSORS = "model.safetensors"
_TAKEN = (SAFETENSORS, "model.safetensors.index.json", "..")


class DirectoryLanding(RingLanding):
    """A directory with one safetensors file and the files beside it.

    It grows as `.<directory>.partial` beside it, a name that no version can have, and has its own
    when it is whole. What a process that was killed has left there is removed.

    Parts of tensors, of several publishers, are put together there.

    Args:
        directory: new, or empty.
        dtype: of all floats; empty: as they are published.
        replace: a directory that is there is replaced when the new one is whole, and not before.

    Raises:
        WeightsError: something is there. Raised by `open`, too, and when another pull writes to
            the directory.
    """

    def __init__(self, directory: Path, *, dtype: str = "", replace: bool = False) -> None:
        self.directory = directory
        self._dtype = dtype
        self._replace = replace
        self._partial = directory.with_name(f".{directory.name}.partial")
        self._lock_file = directory.with_name(f".{directory.name}.partial.lock")
        self._lock: int | None = None
        self._files: dict[str, int] = {}
        self._mapped: mmap.mmap | None = None
        self._shared: list[Segment] = []
        self._check()

    def _check(self) -> None:
        directory = self.directory
        if directory.exists() and (not directory.is_dir() or directory.is_symlink()):
            raise WeightsError(f"{directory} is a file or a link: name a new directory")
        if not self._replace and directory.exists() and any(directory.iterdir()):
            raise WeightsError(f"{directory} is not empty: name a new directory")

    def open(self, engine: TransferEngine, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """As `Landing`: reserves the disk's blocks now."""
        wanted = super().open(engine, manifest)
        self._stretches: list[Stretch] = []
        try:
            self._offer(engine, manifest)
        except BaseException:
            self.close()
            raise
        return wanted

    def _offer(self, engine: TransferEngine, manifest: Manifest) -> None:
        """The files as segments, where others can have pieces from them."""
        stretches = self._layout.stretches(manifest, 0)
        if stretches is None:
            return
        files = [SAFETENSORS] if stretches else []
        for entry in manifest.entries:
            if not entry.dtype and entry.size_bytes:
                stretches.append(Stretch(entry.start, entry.size_bytes, len(files), 0))
                files.append(entry.name)
        for number, file in enumerate(files):
            name = segment_name(manifest.name, manifest.version, f"data{number}")
            self._shared.append(engine.register_file(self._partial / file, name=name))
        self._stretches = stretches

    def wanted(self, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """As `RingLanding`."""
        for entry in manifest.entries:
            if not entry.dtype and (Path(entry.name).name != entry.name or entry.name in _TAKEN):
                raise WeightsMismatchError(f"{entry.name!r} is no name for a file beside tensors")
        self._layout = FileLayout(manifest, self._dtype)
        for entry in manifest.entries:
            if entry.dtype:
                check_conversion(entry.name, entry.dtype, self._layout.wholes[entry.name].dtype)
        try:
            self._take_lock()
            self._reserve(manifest)
        except BaseException:
            self.close()
            raise
        return np.ones(manifest.num_pieces, np.bool_)

    def _take_lock(self) -> None:
        if not self.directory.parent.exists():
            self.directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = open_locked(self._lock_file)
        except BlockingIOError:
            raise WeightsError(
                f"another pull writes to {self.directory}: wait until it ends, or name another "
                "directory"
            ) from None
        self._check()  # whoever had the lock may have just ended

    def _give_lock_back(self) -> None:
        if self._lock is not None:
            self._lock_file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def _reserve(self, manifest: Manifest) -> None:
        """Files of their full size."""
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir()
        tensors = self._create(SAFETENSORS, self._layout.size_bytes)
        os.pwrite(tensors, self._layout.header, 0)
        self._mapped = mmap.mmap(tensors, self._layout.size_bytes)
        for entry in manifest.entries:
            if not entry.dtype:
                self._create(entry.name, entry.size_bytes)

    def put(self, entry: Entry, start: int, content: Bytes) -> None:
        """As `RingLanding`."""
        if not entry.dtype:
            os.pwrite(self._files[entry.name], content.data, start)
        elif (run := self._layout.run(entry)) is not None:
            os.pwrite(self._files[SAFETENSORS], content.data, run + start)
        else:
            self._scatter(entry, start, content)

    def _scatter(self, entry: Entry, start: int, content: Bytes) -> None:
        """Rows of a part lie apart, or become others: written through a mapping of the file."""
        assert self._mapped is not None, "of a landing that is open"
        whole = self._layout.wholes[entry.name]
        first = len(self._layout.header) + whole.start
        raw = raw_dtype(whole.dtype)
        array = np.frombuffer(self._mapped, raw, count(whole.shape), first).reshape(whole.shape)
        box = Box((0,) * len(whole.shape), whole.shape)
        put_run(entry, start, content, array, box, whole.dtype)
        # What was written stays in the system's cache, and counts no more as this process's memory.
        page = first - first % mmap.PAGESIZE
        self._mapped.madvise(mmap.MADV_DONTNEED, page, first + whole.size_bytes - page)

    def shared(self) -> tuple[list[Segment], list[Stretch]]:
        """As `Landing`: the files."""
        return self._shared, self._stretches

    def finish(self) -> None:
        """As `Landing`: the directory has its name."""
        for descriptor in self._files.values():
            os.fsync(descriptor)
        if not self.directory.exists():
            self._partial.rename(self.directory)
        elif self._replace:  # who has its files open keeps them
            old = self.directory.with_name(f".{self.directory.name}.replaced")
            shutil.rmtree(old, ignore_errors=True)
            self.directory.rename(old)
            self._partial.rename(self.directory)
            shutil.rmtree(old, ignore_errors=True)
        else:
            self.directory.rmdir()
            self._partial.rename(self.directory)
        self._give_lock_back()

    def close(self) -> None:
        """As `Landing`; what is not whole is removed."""
        super().close()
        deregister(self._shared)
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._mapped = None
        if self._lock is not None:  # else it is another pull's, or has its name
            shutil.rmtree(self._partial, ignore_errors=True)
            self._give_lock_back()

    def content(self, entry: Entry) -> Bytes | None:
        """As `Landing`, of a finished directory: mapped, where it lies there as one run."""
        if not entry.size_bytes:
            return np.zeros(0, np.uint8)
        offset = self._offset(entry)
        if offset is None:
            return None
        return np.memmap(self.directory / _file(entry), np.uint8, "r", offset, (entry.size_bytes,))

    def read(self, entry: Entry, start: int, room: Bytes) -> bool:
        """As `Landing`, also after `close`. Others may have removed the directory, or cut its files
        off.
        """
        offset = self._offset(entry)
        if offset is None:
            return False
        try:
            with open(self.directory / _file(entry), "rb", buffering=0) as file:
                return os.preadv(file.fileno(), [room.data], offset + start) == len(room)
        except OSError:
            return False

    def _offset(self, entry: Entry) -> int | None:
        """Where an entry begins in its file; None: it does not lie there as it was published."""
        return self._layout.run(entry) if entry.dtype else 0

    def _create(self, name: str, size: int) -> int:
        descriptor = os.open(self._partial / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._files[name] = descriptor
        if size:
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError as error:
                error.filename = f"{self._partial / name} of {size} bytes"
                raise
        return descriptor


def _file(entry: Entry) -> str:
    """Which one has it."""
    return SAFETENSORS if entry.dtype else entry.name
