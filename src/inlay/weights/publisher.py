"""A publisher: offers versions of a checkpoint, and knows who else holds them.

with TransferEngine("10.0.0.1:17100") as engine, Publisher(engine, "policy") as publisher:
    publisher.publish("step-100", Path("checkpoint"))
    publisher.wait_until_held(4, timeout_s=600)
"""

import hashlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from inlay.core.errors import ArgumentError, EngineClosedError, WaitTimeoutError, WeightsError
from inlay.transfer import Segment, TransferEngine, crc32c
from inlay.weights.checkpoint_files import Extent, read_directory
from inlay.weights.live_tensors import Part, copy_tensors, live_entries
from inlay.weights.manifest import (
    ITEM_BYTES,
    PIECE_ALIGN,
    Entry,
    Manifest,
    check_label,
    count,
    piece_size,
)
from inlay.weights.offer import Head, HeadSegment, Offer, Stretch, deregister, segment_name

log = logging.getLogger(__name__)

HOLD_TOPIC = "weights.hold"
SILENT_S = 10.0  # a holder that has not been heard of for so long is forgotten
_LISTEN_S = 0.5
_HASH_THREADS = 4


class Holds(msgspec.Struct, frozen=True, array_like=True):
    """What a peer tells a publisher, now and then.

    Attributes:
        address: where others reach it.
        whole: it has all that it wants; else it pulls.
        leaves: it offers nothing any more.
    """

    name: str
    version: str
    address: str
    whole: bool
    leaves: bool = False


_Data = tuple[Manifest, list[Segment], list[Stretch]]


@dataclass
class _File:
    """A registered file, and how many versions have it."""

    segment: Segment
    users: int = 0


@dataclass(frozen=True)
class _Published:
    """One version: what is offered of it, and its bytes."""

    offer: Offer
    manifest: Manifest
    data: list[Segment]


class Publisher:
    """Offers one checkpoint's versions: the newest, and the one before for those who pull it yet.

    The engine's messages are received by a thread of the publisher: have an engine for it alone.

    Args:
        engine: listens where peers reach it; `close` leaves it open.
        name: of the checkpoint: 1 to 64 letters, digits, dots, dashes or underscores.

    Raises:
        WeightsMismatchError: no such name can be.
    """

    def __init__(self, engine: TransferEngine, name: str) -> None:
        self.name = check_label(name, "checkpoint's name")
        self._engine = engine
        self._head = HeadSegment(engine, name)
        self._offers: list[_Published] = []  # the newest first
        self._heard: dict[tuple[str, str], float] = {}  # (address, version) -> when last
        self._served: set[tuple[str, str]] = set()  # (engine id, version) of who has had all
        self._files: dict[tuple[int, int], _File] = {}  # by device and inode
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="inlay-weights", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """What peers are told."""
        return self._engine.address

    def publish(
        self,
        version: str,
        source: Path | Mapping[str, Any],
        *,
        parts: Mapping[str, Part] | None = None,
        piece_bytes: int | None = None,
    ) -> Manifest:
        """Offer a version from now on; who watches pulls it.

        Args:
            version: its name, another one each time.
            source: a directory of safetensors, which is read by peers where it lies and must not
                change until the next version but one; or tensors by name (NumPy, torch, on the
                host or a CUDA device), which are copied and may change afterwards.
            parts: of tensors of which this publisher has a box only: where it lies. Others have
                the rest; peers name all of them.
            piece_bytes: a multiple of 4,096; by default about a 4,096th of all, 1 to 16 MiB.

        Raises:
            WeightsError: the directory is no whole checkpoint.
            WeightsMismatchError: a version, dtype or part that cannot be.
            ArgumentError: a version that is offered already.

        Cost: reads all of it once, with a BLAKE2b and a CRC32C, about 1 s per GB and thread, four
            threads at most; tensors take their size in memory, a directory nothing.
        """
        check_label(version, "version")
        if any(one.manifest.version == version for one in self._offers):
            raise ArgumentError(f"{self.name} {version} is offered already: name the next one")
        if piece_bytes is not None and (piece_bytes <= 0 or piece_bytes % PIECE_ALIGN):
            raise ArgumentError(f"piece_bytes {piece_bytes}: a multiple of {PIECE_ALIGN} above 0")
        if isinstance(source, Mapping):
            manifest, data, stretches = self._tensors(version, source, parts or {}, piece_bytes)
        else:
            manifest, data, stretches = self._directory(version, Path(source), piece_bytes)
        try:
            in_memory = isinstance(source, Mapping)
            offer = Offer(self._engine, manifest, data, stretches, in_memory=in_memory)
        except BaseException:
            self._release(data)
            raise
        with self._changed:
            self._offers.insert(0, _Published(offer, manifest, data))
            gone = self._offers[2:]
            del self._offers[2:]
            kept = {one.manifest.version for one in self._offers}
            self._served = {one for one in self._served if one[1] in kept}
        self._write_head()
        for old in gone:
            self._withdraw(old)
        log.info("%s %s is offered at %s", self.name, version, self.address)
        return manifest

    def wait_until_held(self, num_peers: int, *, timeout_s: float) -> None:
        """Return when so many peers have had all that they want of the newest version.

        Raises:
            WaitTimeoutError: fewer have it after `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        with self._changed:
            while (held := self._num_served()) < num_peers:
                left = end - time.monotonic()
                if left <= 0:
                    raise WaitTimeoutError(
                        f"{held} of {num_peers} peers have had {self.name} after {timeout_s:g} s"
                    )
                self._changed.wait(left)

    def close(self) -> None:
        """Offer nothing any more."""
        self._closed = True
        self._thread.join()
        self._head.close()
        for one in self._offers:
            self._withdraw(one)
        self._offers.clear()

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _withdraw(self, old: "_Published") -> None:
        old.offer.close()
        self._release(old.data)

    def _directory(self, version: str, directory: Path, piece_bytes: int | None) -> _Data:
        entries, extents = read_directory(directory)
        manifest = self._manifest(version, entries, piece_bytes)
        manifest = _summed_files(manifest, extents)
        files = sorted({extent.file for extent in extents})
        data: list[Segment] = []
        try:
            for file in files:
                data.append(self._file(file))
        except BaseException:
            self._release(data)
            raise
        stretches = [
            Stretch(extent.start, extent.size, files.index(extent.file), extent.offset)
            for extent in extents
        ]
        return manifest, data, stretches

    def _file(self, file: Path) -> Segment:
        """A file as a segment; the same one for all versions that have it."""
        about = file.stat()
        key = (about.st_dev, about.st_ino)
        known = self._files.get(key)
        if known is None or known.segment.size != about.st_size:
            name = f"weights/{self.name}/file{next(self._numbers)}"
            known = _File(self._engine.register_file(file, name=name))
            self._files[key] = known
        known.users += 1
        return known.segment

    def _release(self, data: Sequence[Segment]) -> None:
        """Data segments of a version that is not offered any more."""
        for segment in data:
            key = next((key for key, file in self._files.items() if file.segment is segment), None)
            if key is not None:
                self._files[key].users -= 1
                if self._files[key].users:
                    continue
                del self._files[key]
            deregister([segment])

    def _tensors(
        self,
        version: str,
        tensors: Mapping[str, Any],
        parts: Mapping[str, Part],
        piece_bytes: int | None,
    ) -> _Data:
        entries = live_entries(tensors, parts)
        manifest = self._manifest(version, entries, piece_bytes)
        if not manifest.size_bytes:
            raise WeightsError(f"{self.name} {version} has no tensors")
        name = segment_name(self.name, version, "data0")
        data = self._engine.allocate(manifest.size_bytes, name=name)
        try:
            copy_tensors(self._engine, manifest.entries, tensors, data)
            manifest = _summed_memory(manifest, data)
        except BaseException:
            deregister([data])
            raise
        return manifest, [data], [Stretch(0, manifest.size_bytes, 0, 0)]

    def _manifest(self, version: str, entries: list[Entry], piece_bytes: int | None) -> Manifest:
        # Of all of each tensor: publishers of its parts have to cut the same pieces.
        size = sum(count(entry.whole_shape) * ITEM_BYTES.get(entry.dtype, 1) for entry in entries)
        return Manifest(
            name=self.name,
            version=version,
            piece_bytes=piece_bytes or piece_size(size),
            entries=tuple(entries),
            checksums=b"",
        )

    def _listen(self) -> None:
        """Hear who holds what, and forget who is silent."""
        while not self._closed:
            try:
                message = self._engine.recv(timeout_s=_LISTEN_S)
            except WaitTimeoutError:
                self._forget_silent()
                continue
            except EngineClosedError:
                return
            if message.topic != HOLD_TOPIC:
                continue
            try:
                said = msgspec.msgpack.decode(message.body, type=Holds)
            except msgspec.MsgspecError as error:
                log.error("a message of %s cannot be read: %s", message.engine_id, error)
                continue
            if said.name == self.name:
                self._heard_of(said, message.engine_id)

    def _heard_of(self, said: Holds, engine_id: str) -> None:
        key = (said.address, said.version)
        with self._changed:
            known = key in self._heard
            if said.leaves:
                self._heard.pop(key, None)
            elif said.address:  # else nothing is to be had there
                self._heard[key] = time.monotonic()
            if said.whole:
                self._served.add((engine_id, said.version))
            changed = known != (key in self._heard)
            self._changed.notify_all()
        if changed:
            self._write_head()

    def _forget_silent(self) -> None:
        oldest = time.monotonic() - SILENT_S
        with self._changed:
            silent = [key for key, heard_s in self._heard.items() if heard_s < oldest]
            for key in silent:
                del self._heard[key]
        if silent:
            log.info("not heard of for %g s: %s", SILENT_S, silent)
            self._write_head()

    def _num_served(self) -> int:
        newest = self._offers[0].manifest.version if self._offers else ""
        return sum(version == newest for _, version in self._served)

    def _write_head(self) -> None:
        with self._changed:
            versions = tuple(offer.manifest.version for offer in self._offers)
            holders = tuple(self._heard)
            self._head.write(Head(versions=versions, holders=holders))


def _summed_files(manifest: Manifest, extents: list[Extent]) -> Manifest:
    """With digests and checksums, read from the files through one buffer per thread."""
    open_files = {extent.file: os.open(extent.file, os.O_RDONLY) for extent in extents}
    firsts = [extent.start for extent in extents]

    def read(start: int, room: memoryview) -> None:
        extent = extents[int(np.searchsorted(firsts, start, side="right")) - 1]
        got = os.preadv(open_files[extent.file], [room], extent.offset + start - extent.start)
        if got != len(room):
            raise WeightsError(f"{extent.file} ends before {start + len(room)}: it is cut off")

    def sums(number: int) -> tuple[bytes, bytes]:
        room = memoryview(bytearray(manifest.piece_bytes))
        digest, checksums = hashlib.blake2b(digest_size=16), bytearray()
        for piece in manifest.pieces_of(number):
            part = room[: manifest.sizes_P[piece]]
            read(int(manifest.starts_P[piece]), part)
            digest.update(part)
            checksums += crc32c(part).to_bytes(4, "little")
        return digest.digest(), bytes(checksums)

    try:
        with ThreadPoolExecutor(min(_HASH_THREADS, os.cpu_count() or 1)) as pool:
            return _with_sums(manifest, list(pool.map(sums, range(len(manifest.entries)))))
    finally:
        for descriptor in open_files.values():
            os.close(descriptor)


def _summed_memory(manifest: Manifest, data: Segment) -> Manifest:
    content = memoryview(data)

    def sums(number: int) -> tuple[bytes, bytes]:
        digest, checksums = hashlib.blake2b(digest_size=16), bytearray()
        for piece in manifest.pieces_of(number):
            start = int(manifest.starts_P[piece])
            part = content[start : start + int(manifest.sizes_P[piece])]
            digest.update(part)
            checksums += crc32c(part).to_bytes(4, "little")
        return digest.digest(), bytes(checksums)

    with ThreadPoolExecutor(min(_HASH_THREADS, os.cpu_count() or 1)) as pool:
        return _with_sums(manifest, list(pool.map(sums, range(len(manifest.entries)))))


def _with_sums(manifest: Manifest, sums: list[tuple[bytes, bytes]]) -> Manifest:
    entries = tuple(
        msgspec.structs.replace(entry, digest=digest)
        for entry, (digest, _) in zip(manifest.entries, sums, strict=True)
    )
    checksums = b"".join(checksum for _, checksum in sums)
    return msgspec.structs.replace(manifest, entries=entries, checksums=checksums)
