"""What a checkpoint consists of: tensors and files in one flat space, cut into pieces.

The tensors lie one behind the other, as in a safetensors file, then the files that come along
(config.json, tokenizer). No piece reaches over two of them. Knows no files and no peers.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from inlay.core.errors import WeightsMismatchError

PIECE_ALIGN = 4096
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 1 << 20, 16 << 20
_PIECES = 4096

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Of one element, by safetensors' names of dtypes."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor, a box of one, or a file.

    Attributes:
        dtype: one of `ITEM_BYTES`; empty: a file, `name` is what it is called.
        shape: of what is here; of a file its size.
        start: in the flat space, in bytes.
        digest: BLAKE2b of its bytes, 16 bytes.
        whole: shape of the tensor of which this is a box; empty: it is all of it.
        corner: where the box begins in that, along each axis.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    digest: bytes = b""
    whole: tuple[int, ...] = ()
    corner: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of what is here."""
        return count(self.shape) * ITEM_BYTES.get(self.dtype, 1)

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """Of the tensor, whatever part of it this is."""
        return self.whole or self.shape

    @property
    def at(self) -> tuple[int, ...]:
        """Where it begins in the tensor, along each axis."""
        return self.corner or (0,) * len(self.shape)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A version of a checkpoint, as one publisher has it, or several together.

    Attributes:
        name: of the checkpoint.
        version: of this state of it.
        piece_bytes: of all pieces but the last one of each entry.
        entries: by `start`, without gaps.
        checksums: CRC32C of each piece, little-endian u32.
    """

    name: str
    version: str
    piece_bytes: int
    entries: tuple[Entry, ...]
    checksums: bytes

    @cached_property
    def size_bytes(self) -> int:
        """Of the flat space."""
        last = self.entries[-1] if self.entries else None
        return 0 if last is None else last.start + last.size_bytes

    @cached_property
    def tensor_bytes(self) -> int:
        """Of the tensors, which come first."""
        return sum(entry.size_bytes for entry in self.entries if entry.dtype)

    @cached_property
    def first_pieces(self) -> npt.NDArray[np.int64]:
        """`[entries + 1]`: the first piece of each entry, and the number of pieces."""
        sizes = [-(-entry.size_bytes // self.piece_bytes) for entry in self.entries]
        return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    @property
    def num_pieces(self) -> int:
        """Of all entries."""
        return int(self.first_pieces[-1])

    @cached_property
    def starts_P(self) -> npt.NDArray[np.int64]:
        """Where each piece begins in the flat space."""
        return np.concatenate(
            [np.zeros(0, np.int64)]
            + [
                entry.start + np.arange(0, entry.size_bytes, self.piece_bytes, dtype=np.int64)
                for entry in self.entries
            ]
        )

    @cached_property
    def sizes_P(self) -> npt.NDArray[np.int64]:
        """Bytes of each piece."""
        ends = [entry.start + entry.size_bytes for entry in self.entries]
        per_entry = np.diff(self.first_pieces)
        ends_P = np.repeat(np.array(ends, np.int64), per_entry)
        sizes_P: npt.NDArray[np.int64] = np.minimum(ends_P - self.starts_P, self.piece_bytes)
        return sizes_P

    @cached_property
    def checksums_P(self) -> npt.NDArray[np.uint32]:
        """CRC32C of each piece."""
        return np.frombuffer(self.checksums, "<u4")

    @cached_property
    def by_name(self) -> dict[str, list[Entry]]:
        """The entries of each name: several where publishers hold boxes of one tensor."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.name, []).append(entry)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Of the content: 32 hex digits, the same wherever equal tensors were published."""
        lines = sorted(
            f"{entry.name}|{entry.dtype}|{entry.whole_shape}|{entry.at}|{entry.digest.hex()}"
            for entry in self.entries
            if entry.dtype
        )
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()

    def pieces_of(self, number: int) -> range:
        """The pieces of an entry, by its number."""
        return range(int(self.first_pieces[number]), int(self.first_pieces[number + 1]))

    def to_bytes(self) -> bytes:
        """As it is offered to peers."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(data: bytes, where: str) -> "Manifest":
        """Read and check what a peer offers.

        Raises:
            WeightsMismatchError: it is none, or contradicts itself.
        """
        try:
            manifest = msgspec.msgpack.decode(data, type=Manifest)
        except msgspec.MsgspecError as error:
            raise WeightsMismatchError(f"{where} offers no manifest: {error}") from error
        manifest.check(where)
        return manifest

    def check(self, where: str) -> None:
        """Whether the numbers fit each other.

        Raises:
            WeightsMismatchError: they do not; says which.
        """
        at = 0
        if self.piece_bytes <= 0 or self.piece_bytes % PIECE_ALIGN:
            raise WeightsMismatchError(f"{where}: pieces of {self.piece_bytes} bytes cannot be")
        for entry in self.entries:
            if entry.dtype and entry.dtype not in ITEM_BYTES:
                raise WeightsMismatchError(
                    f"{where}: {entry.name} has dtype {entry.dtype}; known are "
                    f"{', '.join(ITEM_BYTES)}"
                )
            if not len(entry.shape) == len(entry.whole_shape) == len(entry.at):
                raise WeightsMismatchError(
                    f"{where}: {entry.name} {list(entry.shape)} is no box of "
                    f"{list(entry.whole_shape)} at {list(entry.at)}"
                )
            if entry.start != at or min((0, *entry.shape)) < 0:
                raise WeightsMismatchError(
                    f"{where}: {entry.name} {list(entry.shape)} begins at {entry.start}, not {at}"
                )
            at += entry.size_bytes
        if len(self.checksums) != 4 * self.num_pieces:
            raise WeightsMismatchError(
                f"{where}: {len(self.checksums) // 4} checksums for {self.num_pieces} pieces"
            )


Place = tuple[int, int]
"""A publisher's number, and the number of an entry there."""


def union(
    manifests: Sequence[Manifest], where: Sequence[str]
) -> tuple[Manifest, tuple[Place, ...]]:
    """What several publishers have together, and whose each entry is.

    It is the same in whatever order they are named.

    Raises:
        WeightsMismatchError: they have different versions, the same tensor twice, or boxes that
            do not make up a tensor.
    """
    first = manifests[0]
    for other, at in zip(manifests, where, strict=True):
        if (other.name, other.version) != (first.name, first.version):
            raise WeightsMismatchError(
                f"{where[0]} has {first.name} {first.version} and {at} has {other.name} "
                f"{other.version}: publish one version everywhere"
            )
        if other.piece_bytes != first.piece_bytes:
            raise WeightsMismatchError(
                f"{where[0]} cuts pieces of {first.piece_bytes} bytes and {at} of "
                f"{other.piece_bytes}: publish with the same piece_bytes"
            )
    if len(manifests) == 1:
        check_boxes(first)
        return first, tuple((0, index) for index in range(len(first.entries)))
    numbered = [
        (entry, (number, index))
        for number, manifest in enumerate(manifests)
        for index, entry in enumerate(manifest.entries)
    ]
    numbered.sort(key=lambda one: (not one[0].dtype, one[0].name, one[0].at, one[0].digest))
    entries: list[Entry] = []
    places: list[Place] = []
    taken = [0] * len(manifests)
    checksums: list[bytes] = []
    at_byte = 0
    for entry, (number, index) in numbered:
        if entries and _is_copy(entries[-1], entry):
            # Trainers have the same config.json, and norms that all of them hold. Those that give
            # less than others give these.
            if taken[number] + entry.size_bytes < taken[places[-1][0]]:
                taken[places[-1][0]] -= entry.size_bytes
                taken[number] += entry.size_bytes
                places[-1] = (number, index)
            continue
        pieces = manifests[number].pieces_of(index)
        checksums.append(manifests[number].checksums[4 * pieces.start : 4 * pieces.stop])
        entries.append(msgspec.structs.replace(entry, start=at_byte))
        places.append((number, index))
        taken[number] += entry.size_bytes
        at_byte += entry.size_bytes
    joined = Manifest(
        name=first.name,
        version=first.version,
        piece_bytes=first.piece_bytes,
        entries=tuple(entries),
        checksums=b"".join(checksums),
    )
    check_boxes(joined)
    return joined, tuple(places)


def check_boxes(manifest: Manifest) -> None:
    """Whether each tensor is there once, and whole.

    Raises:
        WeightsMismatchError: names what is missing, or there twice.
    """
    for name, parts in manifest.by_name.items():
        if len({(part.dtype, part.whole_shape) for part in parts}) > 1:
            raise WeightsMismatchError(
                f"publishers disagree on {name}: "
                + " and ".join(f"{part.dtype} {list(part.whole_shape)}" for part in parts)
            )
        filled = [part for part in parts if count(part.shape)]
        if twice := next((one for one in _pairs(filled) if _overlap(*one)), None):
            where = " and ".join(dict.fromkeys(map(ranges, twice)))
            raise WeightsMismatchError(
                f"publishers hold {where} with unlike contents: publish each part once"
            )
        held = sum(count(part.shape) for part in parts)
        whole = count(parts[0].whole_shape)
        if held != whole:
            raise WeightsMismatchError(
                f"nobody holds {', '.join(_missing(parts)[:3])}: the publishers hold {held} of "
                f"{whole} elements of {name}; name all of them"
            )


def piece_size(size_bytes: int) -> int:
    """Bytes of a piece for a checkpoint of this size: about 4,096 pieces, of 1 to 16 MiB."""
    wanted = -(-size_bytes // _PIECES // PIECE_ALIGN) * PIECE_ALIGN
    return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, wanted))


def check_label(text: str, what: str) -> str:
    """A name or version, if checkpoints can have it.

    Raises:
        WeightsMismatchError: they cannot.
    """
    if _NAME.fullmatch(text) is None:
        raise WeightsMismatchError(
            f"a {what} has 1 to 64 letters, digits, dots, dashes or underscores and begins with "
            f"neither dot nor dash, got {text[:80]!r}"
        )
    return text


def count(shape: Iterable[int]) -> int:
    """Elements of a shape."""
    product = 1
    for size in shape:
        product *= size
    return product


def ranges(part: Entry) -> str:
    """An entry for people: its name, and where it lies in the tensor."""
    if not part.whole:
        return part.name
    return part.name + _brackets(part.at, part.shape)


def _brackets(corner: Sequence[int], shape: Sequence[int]) -> str:
    sides = (f"{at}:{at + size}" for at, size in zip(corner, shape, strict=True))
    return f"[{', '.join(sides)}]"


def _missing(parts: list[Entry]) -> list[str]:
    """What no part of a tensor has, as boxes."""
    whole = parts[0].whole_shape
    left: list[_Sides] = [tuple((0, size) for size in whole)]
    for part in parts:
        sides = tuple((at, at + size) for at, size in zip(part.at, part.shape, strict=True))
        left = [rest for one in left for rest in _without(one, sides)]
    return [
        parts[0].name + _brackets([a for a, _ in one], [b - a for a, b in one])
        for one in sorted(left)
    ]


_Sides = tuple[tuple[int, int], ...]


def _without(box: _Sides, other: _Sides) -> list[_Sides]:
    """A box without another one, as boxes."""
    if any(max(a, c) >= min(b, d) for (a, b), (c, d) in zip(box, other, strict=True)):
        return [box]
    left = []
    for axis, ((a, b), (c, d)) in enumerate(zip(box, other, strict=True)):
        for side in ((a, c), (d, b)):
            if side[0] < side[1]:
                left.append((*box[:axis], side, *box[axis + 1 :]))
        box = (*box[:axis], (max(a, c), min(b, d)), *box[axis + 1 :])
    return left


def _is_copy(one: Entry, other: Entry) -> bool:
    """Whether two publishers have the same of the same; of files beside tensors any will do."""
    if not other.dtype:
        return not one.dtype and one.name == other.name
    return (one.name, one.dtype, one.shape, one.at, one.whole_shape, one.digest) == (
        other.name, other.dtype, other.shape, other.at, other.whole_shape, other.digest,
    )  # fmt: skip


def _pairs(parts: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    for number, part in enumerate(parts):
        for other in parts[:number]:
            yield part, other


def _overlap(one: Entry, other: Entry) -> bool:
    return all(
        a < b + m and b < a + n
        for a, n, b, m in zip(one.at, one.shape, other.at, other.shape, strict=True)
    )
