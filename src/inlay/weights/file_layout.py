"""Where the tensors of a version lie in one safetensors file, whoever publishes which part of them.

Knows no files and no peers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from inlay.weights.boxes import Shape
from inlay.weights.dtypes import FLOATS
from inlay.weights.manifest import ITEM_BYTES, PIECE_ALIGN, Entry, Manifest, count
from inlay.weights.offer import Stretch


@dataclass(frozen=True)
class Whole:
    """A tensor in a file.

    Attributes:
        start: behind the header, in bytes.
    """

    dtype: str
    shape: Shape
    start: int

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return count(self.shape) * ITEM_BYTES[self.dtype]


class FileLayout:
    """See the module.

    Args:
        dtype: of all floats; empty: as they are published.

    Attributes:
        wholes: the tensors by name, the widest elements first, so that each begins at a multiple
            of its elements' size.
        header: what the file begins with.
        size_bytes: of the file.
    """

    def __init__(self, manifest: Manifest, dtype: str = "") -> None:
        found = {}
        for entry in manifest.entries:
            if entry.dtype:
                own = dtype if dtype and entry.dtype in FLOATS else entry.dtype
                found[entry.name] = (own, entry.whole_shape)
        self.wholes: dict[str, Whole] = {}
        at = 0
        for name, (own, shape) in sorted(found.items(), key=lambda one: -ITEM_BYTES[one[1][0]]):
            self.wholes[name] = Whole(own, shape, at)
            at += self.wholes[name].size_bytes
        self.header = _header(self.wholes)
        self.size_bytes = len(self.header) + at

    def run(self, entry: Entry) -> int | None:
        """Where the bytes of an entry of tensors lie in the file, as they are published; None: they
        lie apart, or are held in another dtype.
        """
        whole = self.wholes[entry.name]
        if whole.dtype != entry.dtype or not _is_run(entry.shape, whole.shape):
            return None
        first = 0
        for size, corner in zip(whole.shape, entry.at, strict=True):
            first = first * size + corner
        return len(self.header) + whole.start + first * ITEM_BYTES[whole.dtype]

    def stretches(self, manifest: Manifest, segment: int) -> list[Stretch] | None:
        """The tensors of a manifest, where the file keeps all as they are published."""
        found: list[Stretch] = []
        for entry in manifest.entries:
            if not entry.dtype or not entry.size_bytes:
                continue
            offset = self.run(entry)
            if offset is None:
                return None
            last = found[-1] if found else None
            if last and (last.start + last.size, last.offset + last.size) == (entry.start, offset):
                found[-1] = Stretch(last.start, last.size + entry.size_bytes, segment, last.offset)
            else:
                found.append(Stretch(entry.start, entry.size_bytes, segment, offset))
        return found


def _is_run(box: Shape, whole: Shape) -> bool:
    """Whether a box of a tensor is one run of its elements."""
    first = next((axis for axis, size in enumerate(box) if size != 1), len(box))
    return box[first + 1 :] == whole[first + 1 :]


def _header(wholes: Mapping[str, Whole]) -> bytes:
    tensors = {
        name: {
            "dtype": whole.dtype,
            "shape": whole.shape,
            "data_offsets": (whole.start, whole.start + whole.size_bytes),
        }
        for name, whole in wholes.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **tensors}, separators=(",", ":")).encode()
    # Data that begin at a whole page of the system can be read past the page cache.
    text += b" " * (-(8 + len(text)) % PIECE_ALIGN)
    return len(text).to_bytes(8, "little") + text
