"""Makes pieces on several threads, and notes them when they are on disk."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import xxhash

from inlay.core.errors import ModelFileError, NotFiniteError
from inlay.models.conversion.journal import Journal
from inlay.models.conversion.pieces import Piece, Product

Progress = Callable[[int, int], None]

# What a kill may cost: so much is made again, at most.
_FLUSH_BYTES = 256 << 20
_FLUSH_S = 1.0
_REPORT_S = 0.5
_READ_BYTES = 4 << 20


def damaged_pieces(
    pieces: Sequence[Piece],
    files: Mapping[str, int],
    done: Mapping[int, str],
    pool: ThreadPoolExecutor,
) -> list[int]:
    """Those that are noted as done, and are not on disk as they were written.

    Cost: reads all that is done.
    """
    numbers = list(done)
    found = pool.map(lambda number: _digest_on_disk(pieces[number], files), numbers)
    return [number for number, digest in zip(numbers, found, strict=True) if digest != done[number]]


def make_pieces(
    product: Product,
    files: Mapping[str, int],
    journal: Journal,
    pool: ThreadPoolExecutor,
    threads: int,
    progress: Progress | None,
) -> None:
    """Make what the journal lacks. An error or Ctrl-C leaves noted what is done.

    Args:
        files: open ones, by name.
        pool: of at least so many threads.
        progress: called on this thread, with bytes of the source done and in all.

    Raises:
        ModelFileError: the source is damaged; names the piece.
        OSError: the disk is full or fails.
    """
    pieces = product.pieces
    todo = [number for number in range(len(pieces)) if number not in journal.done]
    total = sum(piece.source_bytes for piece in pieces)
    left = sum(pieces[number].source_bytes for number in todo)
    if progress is not None:
        progress(total - left, total)
    makers = _Makers(product, files, journal, todo)
    pending = {pool.submit(makers.run) for _ in range(threads)}
    try:
        while pending:
            done, pending = wait(pending, _REPORT_S, FIRST_EXCEPTION)
            if progress is not None:
                progress(total - left + makers.read_bytes, total)
            for one in done:
                one.result()
    finally:
        makers.stop()
        wait(pending)
        makers.flush()


class _Makers:
    """What the threads share."""

    def __init__(
        self,
        product: Product,
        files: Mapping[str, int],
        journal: Journal,
        todo: list[int],
    ) -> None:
        self._product, self._files, self._journal = product, files, journal
        self._pieces = product.pieces
        self._todo: Iterator[int] = iter(todo)
        self._lock = threading.Lock()  # of what follows
        self._written: dict[int, str] = {}
        self._written_bytes = 0
        self._stopped = False
        self.read_bytes = 0
        self._flushing = threading.Lock()
        self._flushed_s = time.monotonic()

    def run(self) -> None:
        while (number := self._next()) is not None:
            piece = self._pieces[number]
            digest = self._write(piece, _make(piece))
            self._product.give_back()
            with self._lock:
                self._written[number] = digest
                self._written_bytes += sum(extent.size for extent in piece.extents)
                self.read_bytes += piece.source_bytes
                late = time.monotonic() - self._flushed_s > _FLUSH_S
                due = late or self._written_bytes > _FLUSH_BYTES
            if due and self._flushing.acquire(blocking=False):
                try:
                    self._flush()
                finally:
                    self._flushing.release()

    def stop(self) -> None:
        """End after the pieces that are in work."""
        with self._lock:
            self._stopped = True

    def flush(self) -> None:
        with self._flushing:
            self._flush()

    def _next(self) -> int | None:
        with self._lock:
            return None if self._stopped else next(self._todo, None)

    def _write(self, piece: Piece, made: Sequence[Any]) -> str:
        digest = xxhash.xxh3_128()
        for extent, values in zip(piece.extents, made, strict=True):
            data = memoryview(values).cast("B")
            assert len(data) == extent.size, f"{piece.name}: {len(data)} bytes for {extent}"
            digest.update(data)
            done = 0
            while done < len(data):
                done += os.pwrite(self._files[extent.file], data[done:], extent.offset + done)
        return digest.hexdigest()

    def _flush(self) -> None:
        with self._lock:
            written, self._written, self._written_bytes = self._written, {}, 0
        if not written:
            return
        for name in {extent.file for one in written for extent in self._pieces[one].extents}:
            os.fdatasync(self._files[name])
        self._journal.add(written)
        with self._lock:
            self._flushed_s = time.monotonic()


def _make(piece: Piece) -> Sequence[Any]:
    try:
        return piece.make()
    except NotFiniteError as error:
        raise ModelFileError(
            f"{piece.name} cannot be converted ({error}): the file is damaged, download it again"
        ) from error


def _digest_on_disk(piece: Piece, files: Mapping[str, int]) -> str:
    digest = xxhash.xxh3_128()
    for extent in piece.extents:
        for data in read_chunks(files[extent.file], extent.offset, extent.size):
            digest.update(data)
    return digest.hexdigest()


def read_chunks(fd: int, offset: int, size: int) -> Iterator[bytes]:
    """The bytes of a file in parts of a few MiB; fewer where it ends."""
    end = offset + size
    while offset < end and (data := os.pread(fd, min(_READ_BYTES, end - offset), offset)):
        yield data
        offset += len(data)
