"""What a file of packed weights holds and where, known before a byte of it is packed.

    layout = PackedLayout(metadata={"model": "..."})
    head = layout.add_linear("head", 151936, 2048, "int8")["panels"]
    os.pwrite(fd, weight.panels(), head.offset)
    layout.seal(fd)

Sizes follow from shapes and formats, so parts may be packed in any order, on several threads, and
by processes one after the other. `_packed_file` has the layout of the file, and reads it.
"""

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np
import xxhash

from inlay.core.errors import ArgumentError
from inlay.core.weight_format import format_named
from inlay.kernels._linear import PANEL

VERSION = 2
MAGIC = b"INLAYPKW"
# Magic, version, unused, size of the file, offset of the table, digests of the table and of this.
PREAMBLE = struct.Struct("<8sIIQQ16s")
_DIGEST_BYTES = 16
PREAMBLE_BYTES = PREAMBLE.size + _DIGEST_BYTES
_OS_PAGE = 4096
_READ_BYTES = 4 << 20
_ARRAY_DTYPES = ("float32", "uint16", "int8", "uint8", "int32", "int64")


class Part(msgspec.Struct, frozen=True):
    """Where some bytes lie; the digest is XXH3, 128 bits, in hexadecimal."""

    offset: int
    size: int
    digest: str


class Entry(msgspec.Struct, frozen=True):
    """One weight.

    `linear` has the parts panels; `experts` gate_up, down and perhaps biases; `array` has data.
    """

    kind: str
    format: str  # or the dtype of an array
    shape: list[int]  # linear [N, K], experts [E, M, F]
    parts: dict[str, Part]


class Table(msgspec.Struct, frozen=True):
    """What the end of a file says of all of it."""

    metadata: dict[str, Any]
    entries: dict[str, Entry]


def digest_of(data: Any) -> bytes:
    """Finds damage, not forgery: as fast as memory, 25 times as fast as BLAKE2b."""
    return xxhash.xxh3_128_digest(data)


def linear_bytes(out_features: int, in_features: int, format: str) -> int:
    """Size of a dense weight's panels; from whole panels on, rows add up."""
    return -(-out_features // PANEL) * PANEL * format_named(format).row_bytes(in_features)


def expert_bytes(hidden: int, intermediate: int, format: str) -> dict[str, int]:
    """Sizes of one expert's parts; biases are there where it has such."""
    gate_up_rows = 2 * -(-intermediate // (PANEL // 2)) * (PANEL // 2)
    return {
        "gate_up": linear_bytes(gate_up_rows, hidden, format),
        "down": linear_bytes(hidden, intermediate, format),
        "biases": 4 * (2 * intermediate + hidden),
    }


class PackedLayout:
    """The places of all parts.

    Args:
        metadata: anything that JSON can hold, e.g. the model's configuration.

    Attributes:
        VERSION: of panels and file; a file of another version has to be made again.
        end: where the parts end.
    """

    VERSION: ClassVar[int] = VERSION

    def __init__(self, metadata: Mapping[str, Any] | None = None) -> None:
        self._metadata = dict(metadata or {})
        self._entries: dict[str, Entry] = {}
        self.end = PREAMBLE_BYTES

    def add_linear(
        self, name: str, out_features: int, in_features: int, format: str
    ) -> dict[str, Part]:
        """Place a dense weight."""
        sizes = {"panels": linear_bytes(out_features, in_features, format)}
        return self._add(name, "linear", format, [out_features, in_features], sizes)

    def add_experts(
        self,
        name: str,
        num_experts: int,
        hidden: int,
        intermediate: int,
        format: str,
        *,
        biases: bool = False,
    ) -> dict[str, Part]:
        """Place the experts of a layer: each part has all of them, one after the other."""
        sizes = {
            key: num_experts * size
            for key, size in expert_bytes(hidden, intermediate, format).items()
            if biases or key != "biases"
        }
        return self._add(name, "experts", format, [num_experts, hidden, intermediate], sizes)

    def add_array(self, name: str, dtype: str, shape: Iterable[int]) -> dict[str, Part]:
        """Place a plain array, e.g. a norm or an embedding table; bf16 as its bits in uint16.

        Raises:
            ArgumentError: its dtype is none of float32, uint16, int8, uint8, int32, int64.
        """
        if dtype not in _ARRAY_DTYPES:
            raise ArgumentError(f"array: must be one of {', '.join(_ARRAY_DTYPES)}, is {dtype}")
        sizes = list(shape)
        size = np.dtype(dtype).itemsize * int(np.prod(sizes, dtype=np.int64))
        return self._add(name, "array", dtype, sizes, {"data": size})

    def seal(
        self, fd: int, each: Callable[[Callable[[Part], Part], list[Part]], Iterable[Part]] = map
    ) -> None:
        """Write preamble and table behind the parts, which are read once for their digests.

        The caller flushes the file and gives it its name.

        Args:
            fd: of the file, to read and write.
            each: how digests are made; the `map` of a pool of threads makes several at a time.

        Raises:
            OSError: the file cannot be read or written, or ends before its parts do.
        """
        parts = [part for entry in self._entries.values() for part in entry.parts.values()]
        sealed = iter(each(lambda part: _with_digest(fd, part), parts))
        entries = {
            name: msgspec.structs.replace(entry, parts={key: next(sealed) for key in entry.parts})
            for name, entry in self._entries.items()
        }
        table = msgspec.json.encode(Table(self._metadata, entries))
        size = self.end + len(table)
        preamble = PREAMBLE.pack(MAGIC, VERSION, 0, size, self.end, digest_of(table))
        os.ftruncate(fd, size)
        for data, at in ((table, self.end), (preamble + digest_of(preamble), 0)):
            if os.pwrite(fd, data, at) != len(data):
                raise OSError("the disk took only a part of the table")

    def _add(
        self, name: str, kind: str, format: str, shape: list[int], sizes: dict[str, int]
    ) -> dict[str, Part]:
        if name in self._entries:
            raise ArgumentError(f"name: {name!r} is in the file already")
        parts = {}
        for key, size in sizes.items():
            offset = -(-self.end // _OS_PAGE) * _OS_PAGE
            parts[key] = Part(offset, size, "")
            self.end = offset + size
        self._entries[name] = Entry(kind, format, shape, parts)
        return parts


def _with_digest(fd: int, part: Part) -> Part:
    hashed, at, end = xxhash.xxh3_128(), part.offset, part.offset + part.size
    while at < end:
        data = os.pread(fd, min(_READ_BYTES, end - at), at)
        if not data:
            raise OSError(f"the file ends at {at} instead of {end}")
        hashed.update(data)
        at += len(data)
    return msgspec.structs.replace(part, digest=hashed.hexdigest())
