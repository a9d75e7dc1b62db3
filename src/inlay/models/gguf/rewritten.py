"""A GGUF file, or the parts of one, in which some matrices are others: all else keeps its bytes.

Matrices keep their types, so they take as many bytes as before, and heads of files, metadata and
the tokenizer among them, stay as they are.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inlay.core.errors import ModelFileError, NotFiniteError, UnsupportedModelError
from inlay.models.checkpoint import Tensors
from inlay.models.conversion.pieces import PIECE_BYTES, Each, Extent, Piece
from inlay.models.conversion.shards import CHECKSUM_FILE, sha256
from inlay.models.float_arrays import to_float32
from inlay.models.gguf.encode import can_encode, encode
from inlay.models.gguf.tensors import GgufPart, GgufTensors
from inlay.models.published.rows import floats_of


class RewrittenGguf:
    """Implements `Product`.

    Args:
        source: the file.
        matrices: what is to be in it, by the makers' names.
        changed: names of those that are not as the source has them.
        fingerprint: of `matrices`.

    Raises:
        UnsupportedModelError: a matrix that changes is of a type that is not written.

    Cost: memory of `PIECE_BYTES` a few times for each thread; of an expert, or a matrix whose rows
        the file has in another order, of the whole.
    """

    def __init__(
        self, source: GgufTensors, matrices: Tensors, changed: Sequence[str], *, fingerprint: str
    ) -> None:
        self._matrices, self.fingerprint = matrices, fingerprint
        parts = [(name, part) for name in changed for part in source.parts(name)]
        for _, part in parts:
            if not can_encode(part.kind):
                raise UnsupportedModelError(
                    f"{part.file}: {part.name} is of type {part.kind.name}, which is read and not "
                    "written: leave export_as out, which gives bfloat16, and inlay convert packs it"
                )
        self.files: Mapping[str, int] = {file.name: file.stat().st_size for file in source.files}
        self.pieces: Sequence[Piece] = [
            piece
            for file in source.files
            for piece in self._of_file(file, [one for one in parts if one[1].file == file])
        ]

    @property
    def identity(self) -> Mapping[str, Any]:
        """As the protocol says."""
        return {"target": f"the same types in {len(self.files)} GGUF", "source": self.fingerprint}

    def give_back(self) -> None:
        """As the protocol says."""
        self._matrices.give_back()

    def seal(self, files: Mapping[str, int], each: Each) -> Mapping[str, bytes]:
        """Checksums of all files."""
        digests = each(lambda name: sha256(files[name], self.files[name]), list(files))
        for fd in files.values():
            os.fsync(fd)
        lines = [f"{digest}  {name}\n" for digest, name in zip(digests, files, strict=True)]
        return {CHECKSUM_FILE: "".join(lines).encode()}

    def is_in(self, directory: Path) -> bool:
        """Nothing in such a file says what it was made from, so it is never taken for the same."""
        return False

    def _of_file(self, file: Path, parts: Sequence[tuple[str, GgufPart]]) -> Iterator[Piece]:
        """In the order of their places: matrices that change, and what lies between."""
        at = 0
        for name, part in sorted(parts, key=lambda one: one[1].offset):
            yield from _copies(file, at, part.offset)
            yield from self._encoded(name, part)
            at = part.offset + part.rows * part.row_bytes
        yield from _copies(file, at, self.files[file.name])

    def _encoded(self, name: str, part: GgufPart) -> Iterator[Piece]:
        step = max(1, PIECE_BYTES // part.row_bytes) if part.take is None else part.rows
        for first in range(0, part.rows, step):
            rows = slice(first, min(part.rows, first + step))
            size = (rows.stop - rows.start) * part.row_bytes
            yield Piece(
                name=part.name,
                source_bytes=size,
                extents=(Extent(part.file.name, part.offset + first * part.row_bytes, size),),
                make=partial(self._make, name, part, rows),
            )

    def _make(self, name: str, part: GgufPart, rows: slice) -> Sequence[Any]:
        if part.take is None:
            values = floats_of(self._matrices.get(name, rows))
        else:
            values = part.take(floats_of(self._matrices.get(name)))
        floats = np.ascontiguousarray(to_float32(values))
        if not np.isfinite(floats).all():
            raise NotFiniteError("it holds a NaN or an infinity")
        return (encode(floats, part.kind),)


def _copies(file: Path, first: int, end: int) -> Iterator[Piece]:
    for at in range(first, end, PIECE_BYTES):
        size = min(PIECE_BYTES, end - at)
        yield Piece(
            name=f"bytes {at} to {at + size} of {file.name}",
            source_bytes=size,
            extents=(Extent(file.name, at, size),),
            make=partial(_read, file, at, size),
        )


def _read(file: Path, at: int, size: int) -> Sequence[Any]:
    with file.open("rb") as opened:
        opened.seek(at)
        data = opened.read(size)
    if len(data) != size:
        raise ModelFileError(f"{file} ends at {at + len(data)}: it was changed on the way")
    return (np.frombuffer(data, np.uint8),)
