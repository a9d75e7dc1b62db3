"""What a conversion writes: files of known size, cut into pieces that are made one by one."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")

PIECE_BYTES = 16 << 20
"""Of a matrix's source, at most: what a thread holds of it. An expert is one piece."""


@dataclass(frozen=True)
class Extent:
    """Where some of a piece's bytes lie in one of the files."""

    file: str
    offset: int
    size: int


@dataclass(frozen=True)
class Piece:
    """What is made at once.

    Attributes:
        name: for messages.
        source_bytes: that are read for it, about.
        extents: where it goes.
        make: gives the bytes of each extent, the same at every call.
    """

    name: str
    source_bytes: int
    extents: tuple[Extent, ...]
    make: Callable[[], Sequence[Any]]


def digest_of(pieces: Iterable[Piece]) -> str:
    """Of the places of all pieces: their numbers mean the same where this is the same."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(repr(piece.extents).encode())
    return digest.hexdigest()


class Each(Protocol):
    """As `map`, but several at a time."""

    def __call__(self, function: Callable[[_In], _Out], items: Iterable[_In], /) -> Iterable[_Out]:
        """The results in the order of the items."""
        ...


class Product(Protocol):
    """All that a conversion makes of a source."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the bytes follow from, as JSON has it; another one is another conversion."""
        ...

    @property
    def files(self) -> Mapping[str, int]:
        """The files that pieces go to, and their sizes before they are sealed."""
        ...

    @property
    def pieces(self) -> Sequence[Piece]:
        """In the order of their places; their numbers are what a journal notes."""
        ...

    def give_back(self) -> None:
        """Take what this thread has read of the source out of the process's memory."""
        ...

    def seal(self, files: Mapping[str, int], each: Each) -> Mapping[str, bytes]:
        """Write what depends on all pieces, given open files; further small files by name."""
        ...

    def is_in(self, directory: Path) -> bool:
        """Whether the directory holds this product already."""
        ...
