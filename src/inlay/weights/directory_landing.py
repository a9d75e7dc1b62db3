"""A directory as the place where a version lands."""

import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inlay.core.errors import WeightsError, WeightsMismatchError
from inlay.transfer import Segment, TransferEngine
from inlay.weights.landing import Bytes, RingLanding
from inlay.weights.manifest import Entry, Manifest, header
from inlay.weights.offer import Stretch, deregister, segment_name

SAFETENSORS = "model.safetensors"
_TAKEN = (SAFETENSORS, "model.safetensors.index.json", "..")


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
