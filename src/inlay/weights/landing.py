"""Where pulled pieces land: memory of this process, files, or parts of tensors.

Memory takes pieces where they stay. Files and parts take them through a ring of buffers of bounded
size: a piece is summed up there, and goes on.
"""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import WeightsError, WeightsMismatchError
from inlay.transfer import Segment, TransferEngine
from inlay.weights.boxes import Box, boxes_of_run
from inlay.weights.dtypes import check_conversion, convert, raw_dtype
from inlay.weights.manifest import ITEM_BYTES, Entry, Manifest, header
from inlay.weights.offer import Stretch, deregister, segment_name

RING_BYTES = 64 << 20
SAFETENSORS = "model.safetensors"
_TAKEN = (SAFETENSORS, "model.safetensors.index.json", "..")

Bytes = npt.NDArray[np.uint8]


class Landing(ABC):
    """What becomes of pieces. Called by the loop of one pull.

    Attributes:
        segment: where pieces land, registered.
    """

    segment: Segment

    @abstractmethod
    def open(self, engine: TransferEngine, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """Make room; returns which pieces are wanted.

        Raises:
            WeightsMismatchError: what is wanted is not what is published.
        """

    @abstractmethod
    def place(self, piece: int) -> int | None:
        """Where in the segment a piece is to land; None: no room before others have been taken."""

    @abstractmethod
    def take(self, piece: int, content: Bytes) -> None:
        """A piece is there, and is what it should be."""

    @abstractmethod
    def drop(self, piece: int) -> None:
        """A piece did not come; its place is free again."""

    def shared(self) -> tuple[list[Segment], list[Stretch]]:
        """What others may read of it, once pieces are taken; nothing: it keeps no whole pieces."""
        return [], []

    @abstractmethod
    def finish(self) -> None:
        """All that is wanted has been taken."""

    @abstractmethod
    def close(self) -> None:
        """Give the room back, unless others hold it."""


class MemoryLanding(Landing):
    """All tensors and files in memory of this process, which others can read.

    Args:
        room: memory to land in, of `engine.allocate`, large enough, which stays its owner's; None:
            memory of the landing's own. Versions that land in turn in two of them spare the system
            new pages each time.
    """

    def __init__(self, room: Segment | None = None) -> None:
        self._room = room

    def open(self, engine: TransferEngine, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """As `Landing`. Cost: 0.2 s per GiB without room."""
        self._manifest = manifest
        if self._room is None:
            name = segment_name(manifest.name, manifest.version, "data0")
            self.segment = engine.allocate(max(1, manifest.size_bytes), name=name)
        elif self._room.size < manifest.size_bytes:
            raise WeightsMismatchError(
                f"{manifest.name} {manifest.version} has {manifest.size_bytes} bytes, and there is "
                f"room for {self._room.size}"
            )
        else:
            self.segment = self._room
        self._starts = manifest.starts_P.tolist()
        return np.ones(manifest.num_pieces, np.bool_)

    def place(self, piece: int) -> int | None:
        """As `Landing`: where it stays."""
        return int(self._starts[piece])

    def take(self, piece: int, content: Bytes) -> None:
        """As `Landing`: it is where it stays."""

    def drop(self, piece: int) -> None:
        """As `Landing`."""

    def shared(self) -> tuple[list[Segment], list[Stretch]]:
        """As `Landing`: all of it."""
        return [self.segment], [Stretch(0, self._manifest.size_bytes, 0, 0)]

    def finish(self) -> None:
        """As `Landing`."""

    def close(self) -> None:
        """As `Landing`."""
        if self._room is None:
            deregister([self.segment])

    def content(self, entry: Entry) -> Bytes:
        """The bytes of an entry, to be read."""
        return np.frombuffer(memoryview(self.segment), np.uint8)[
            entry.start : entry.start + entry.size_bytes
        ]


class Ring:
    """Buffers of one piece each, between the network and where pieces go."""

    def __init__(self, engine: TransferEngine, manifest: Manifest) -> None:
        self._piece_bytes = manifest.piece_bytes
        slots = max(2, RING_BYTES // manifest.piece_bytes)
        self.segment = engine.allocate(slots * manifest.piece_bytes)
        self._free = list(range(slots))
        self._of: dict[int, int] = {}

    def place(self, piece: int) -> int | None:
        """As `Landing.place`."""
        if not self._free:
            return None
        slot = self._of[piece] = self._free.pop()
        return slot * self._piece_bytes

    def drop(self, piece: int) -> None:
        """Its buffer is free."""
        self._free.append(self._of.pop(piece))


class RingLanding(Landing):
    """Takes pieces out of a ring."""

    def open(self, engine: TransferEngine, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """As `Landing`."""
        self._manifest = manifest
        self._firsts = manifest.first_pieces
        self._ring = Ring(engine, manifest)
        self.segment = self._ring.segment
        return self.wanted(manifest)

    @abstractmethod
    def wanted(self, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """Which pieces, and room for what becomes of them."""

    def place(self, piece: int) -> int | None:
        """As `Landing`."""
        return self._ring.place(piece)

    def take(self, piece: int, content: Bytes) -> None:
        """As `Landing`."""
        number = int(np.searchsorted(self._firsts, piece, side="right")) - 1
        first = piece - int(self._firsts[number])
        entry = self._manifest.entries[number]
        self.put(entry, first * self._manifest.piece_bytes, content)
        if piece in self._ring._of:
            self._ring.drop(piece)

    @abstractmethod
    def put(self, entry: Entry, start: int, content: Bytes) -> None:
        """Bytes of an entry, from `start` on."""

    def drop(self, piece: int) -> None:
        """As `Landing`."""
        self._ring.drop(piece)

    def close(self) -> None:
        """As `Landing`."""
        deregister([self.segment])


class DirectoryLanding(RingLanding):
    """A directory with one safetensors file and the files beside it.

    It grows as `<directory>.partial` and has its name when it is whole.

    Args:
        directory: new, or empty.

    Raises:
        WeightsError: something is there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if directory.exists() and any(directory.iterdir()):
            raise WeightsError(f"{directory} is not empty: name a new directory")
        self._partial = directory.with_name(directory.name + ".partial")
        self._files: dict[str, int] = {}
        self._shared: list[Segment] = []

    def open(self, engine: TransferEngine, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """As `Landing`: reserves the disk's blocks now."""
        wanted = super().open(engine, manifest)
        self._stretches: list[Stretch] = []
        for number, (file, start, size, offset) in enumerate(self._parts(manifest)):
            name = segment_name(manifest.name, manifest.version, f"data{number}")
            self._shared.append(engine.register_file(self._partial / file, name=name))
            self._stretches.append(Stretch(start, size, number, offset))
        return wanted

    def wanted(self, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """As `RingLanding`."""
        divided = [name for name, parts in manifest.by_name.items() if len(parts) > 1]
        if divided or any(entry.whole for entry in manifest.entries):
            raise WeightsMismatchError(
                f"publishers hold parts of tensors ({', '.join(divided[:3])}): pull with wants, "
                "which puts them together"
            )
        for entry in manifest.entries:
            if not entry.dtype and (Path(entry.name).name != entry.name or entry.name in _TAKEN):
                raise WeightsMismatchError(f"{entry.name!r} is no name for a file beside tensors")
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)
        self._header = header(manifest)
        total = len(self._header) + manifest.tensor_bytes
        tensors = self._create(SAFETENSORS, total)
        os.pwrite(tensors, self._header, 0)
        for entry in manifest.entries:
            if not entry.dtype:
                self._create(entry.name, entry.size_bytes)
        return np.ones(manifest.num_pieces, np.bool_)

    def put(self, entry: Entry, start: int, content: Bytes) -> None:
        """As `RingLanding`."""
        if entry.dtype:
            os.pwrite(
                self._files[SAFETENSORS],
                content.data,
                len(self._header) + entry.start + start,
            )
        else:
            os.pwrite(self._files[entry.name], content.data, start)

    def shared(self) -> tuple[list[Segment], list[Stretch]]:
        """As `Landing`: the files."""
        return self._shared, self._stretches

    def finish(self) -> None:
        """As `Landing`: the directory has its name."""
        for descriptor in self._files.values():
            os.fsync(descriptor)
        if self.directory.exists():
            self.directory.rmdir()
        self._partial.rename(self.directory)

    def close(self) -> None:
        """As `Landing`; what is not whole is removed."""
        super().close()
        deregister(self._shared)
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        shutil.rmtree(self._partial, ignore_errors=True)

    def content(self, entry: Entry) -> Bytes:
        """The bytes of an entry of a finished directory, mapped."""
        if not entry.size_bytes:
            return np.zeros(0, np.uint8)
        offset = len(self._header) + entry.start if entry.dtype else 0
        file = self.directory / (SAFETENSORS if entry.dtype else entry.name)
        return np.memmap(file, np.uint8, "r", offset, (entry.size_bytes,))

    def _create(self, name: str, size: int) -> int:
        descriptor = os.open(self._partial / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._files[name] = descriptor
        if size:
            os.posix_fallocate(descriptor, 0, size)
        return descriptor

    def _parts(self, manifest: Manifest) -> list[tuple[str, int, int, int]]:
        """File, start in the flat space, size, and offset in the file."""
        parts = [(SAFETENSORS, 0, manifest.tensor_bytes, len(self._header))]
        parts += [
            (entry.name, entry.start, entry.size_bytes, 0)
            for entry in manifest.entries
            if not entry.dtype
        ]
        return [part for part in parts if part[2]]


@dataclass(frozen=True, kw_only=True)
class Want:
    """What is wanted of a tensor.

    Attributes:
        box: which part; None: all of it.
        dtype: in which dtype; empty: as it is published.
        shape: which shape the whole tensor must have; empty: whatever it has.
    """

    box: Box | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()


Wants = Callable[[Manifest], Mapping[str, Want]]


class PartsLanding(RingLanding):
    """Boxes of tensors, in dtypes of one's own: another layout than the publishers have.

    Nothing of it is offered to others, since it need not have whole pieces.

    Args:
        wants: of each tensor that is wanted, by its name.

    Attributes:
        arrays: by name, of raw unsigned elements.
        dtypes: by name.
    """

    def __init__(self, wants: Wants) -> None:
        self._wants = wants
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self.dtypes: dict[str, str] = {}
        self._boxes: dict[str, Box] = {}

    def wanted(self, manifest: Manifest) -> npt.NDArray[np.bool_]:
        """As `RingLanding`: pieces with at least one element of a box."""
        for name, want in self._wants(manifest).items():
            parts = manifest.by_name.get(name)
            if parts is None or not parts[0].dtype:
                raise WeightsMismatchError(
                    f"{manifest.name} {manifest.version} has no tensor {name}: it has "
                    f"{len(manifest.by_name)} others"
                )
            own, whole = parts[0].dtype, parts[0].whole_shape
            if want.shape and want.shape != whole:
                raise WeightsMismatchError(
                    f"{name} is published as {list(whole)} and wanted as {list(want.shape)}"
                )
            box = want.box or Box((0,) * len(whole), whole)
            if len(box.shape) != len(whole) or box.common(Box((0,) * len(whole), whole)) != box:
                raise WeightsMismatchError(f"{box} is not in {name} {list(whole)}")
            dtype = want.dtype or own
            check_conversion(name, own, dtype)
            self._boxes[name], self.dtypes[name] = box, dtype
            self.arrays[name] = np.empty(box.shape, raw_dtype(dtype))
        wanted = np.zeros(manifest.num_pieces, np.bool_)
        for number, entry in enumerate(manifest.entries):
            if entry.name not in self._boxes:
                continue
            items = manifest.piece_bytes // ITEM_BYTES[entry.dtype]
            for at, piece in enumerate(manifest.pieces_of(number)):
                stop = min((at + 1) * items, entry.size_bytes // ITEM_BYTES[entry.dtype])
                wanted[piece] = bool(self._hits(entry, at * items, stop))
        return wanted

    def put(self, entry: Entry, start: int, content: Bytes) -> None:
        """As `RingLanding`: what of it is in the box."""
        item = ITEM_BYTES[entry.dtype]
        elements = content.view(raw_dtype(entry.dtype))
        array, wanted = self.arrays[entry.name], self._boxes[entry.name]
        for at, box, common in self._hits(entry, start // item, (start + len(content)) // item):
            run = elements[at : at + int(np.prod(box.shape))].reshape(box.shape)
            some = run[common.index(box.corner)]
            array[common.index(wanted.corner)] = convert(some, entry.dtype, self.dtypes[entry.name])

    def _hits(self, entry: Entry, start: int, stop: int) -> list[tuple[int, Box, Box]]:
        """Of a run of elements: where each box begins in it, the box, and what is wanted of it."""
        hits, at = [], 0
        for run in boxes_of_run(start, stop, entry.shape):
            box = run.moved(entry.at)
            if (common := box.common(self._boxes[entry.name])) is not None:
                hits.append((at, box, common))
            at += int(np.prod(box.shape))
        return hits

    def finish(self) -> None:
        """As `Landing`."""
