"""The safetensors files of a model directory: what they hold, mapped, checked, named in errors.

Tensors are arrays of mapped files: reading one costs page faults, not a copy, and the operating
system may drop its pages again. Knows nothing of what the tensors mean.
"""

import hashlib
import json
import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.core.shard_content import add_content
from inlay.core.weight_index import WEIGHT_INDEX
from inlay.models.embedding import FloatEmbedding
from inlay.models.float_arrays import BFLOAT16, Array, bits_of
from inlay.models.os_pages import ReadPages, equal
from inlay.models.safetensors_file import DTYPES, SafetensorsFile
from inlay.models.shard_files import find_shards, some
from inlay.models.weight_names import IGNORED_SUFFIXES, Expected

log = logging.getLogger(__name__)

_FLOATS = ("F32", "BF16", "F16")  # quantised weights are made of others, too
Index = int | slice | None
# How the names of a model of text and images begin, and those of its text part by itself.
_TEXT_PREFIXES = {"language_model.": "", "model.language_model.": "model."}
_HEAD = "lm_head."
_COMPARED_BYTES = 8 << 20  # at a time, of each of two files


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies and what it is; `name`: what its file calls it. Of more rows than
    `shape` says the first are meant.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class WeightFiles:
    """All safetensors shards of one directory. Of a model of text and images, those of the text.

    Attributes:
        tensors: what each name is; names begin as those of a model of text alone.
    """

    def __init__(
        self, directory: Path, vocabulary: Sequence[Expected] = (), *, quantized: bool = False
    ) -> None:
        """Open and check every shard's header.

        Args:
            vocabulary: the embedding, and the output matrix where the model has one of its own.
                Rows of no token are left out, and the embedding is taken as an output matrix that
                is not there; both with a warning.
            quantized: codes are expected, too, not floats alone.

        Raises:
            ModelNotFoundError: no weights in the directory.
            ModelFileError: a file or the index is cut off or damaged.
            UnsupportedModelError: a tensor has a dtype that is not expected.
        """
        self.directory = directory
        known = tuple(DTYPES) if quantized else _FLOATS
        self.files, self._index = find_shards(directory)
        self._open = {file: SafetensorsFile(file) for file in self.files}
        self._kept_open = {file: _KeptOpen(file) for file in self.files}
        self._pages = ReadPages()
        file_of = {name: file for file, shard in self._open.items() for name in shard.tensors}
        self.tensors: dict[str, TensorInfo] = {}
        for name, own in _text_names(directory, file_of).items():
            stored = self._open[file_of[own]].tensors[own]
            if stored.dtype not in known:
                raise UnsupportedModelError(
                    f"{file_of[own].name}: tensor {own} has dtype {stored.dtype}; supported with "
                    f"this config.json are {', '.join(known)}"
                )
            dtype = DTYPES[stored.dtype]
            self.tensors[name] = TensorInfo(file_of[own], own, stored.shape, dtype)
        self._lost = [name for name in self._index if name not in file_of]
        self._fit(vocabulary)

    def _fit(self, vocabulary: Sequence[Expected]) -> None:
        """Take an embedding and an output matrix as other programs take them."""
        for one in vocabulary:
            embedding = self.tensors.get(vocabulary[0].name)
            # Quantised ones have other names that begin so.
            module = one.name.removesuffix("weight")
            has_none = not any(name.startswith(module) for name in self.tensors)
            has_none = has_none and not any(name.endswith(one.name) for name in self._index)
            if has_none and embedding:
                log.warning(
                    "%s: the weights hold no %s: %s is taken as it, as if config.json had "
                    "tie_word_embeddings",
                    self.directory,
                    one.name,
                    embedding.name,
                )
                self.tensors[one.name] = embedding
            has = self.tensors.get(one.name)
            if has and has.shape[1:] == one.shape[1:] and has.shape[0] > one.shape[0]:
                log.warning(
                    "%s: %s has %d rows and config.json a vocab_size of %d: the last %d are left "
                    "out",
                    self.directory,
                    has.name,
                    has.shape[0],
                    one.shape[0],
                    has.shape[0] - one.shape[0],
                )
                self.tensors[one.name] = replace(has, shape=one.shape)

    def holds(self, name: str) -> bool:
        """Whether it is there."""
        return name in self.tensors

    def is_bfloat16(self, name: str) -> bool:
        """Whether it is."""
        return self.tensors[name].dtype == BFLOAT16

    def view(self, name: str) -> Array:
        """The tensor as an array of the mapped file; do not write to it."""
        file = self.tensors[name].file
        with self._reading(name):
            # Of a file that has been cut, pages that are gone would be touched.
            had, has = self._kept_open[file].opened.st_size, self._kept_open[file].now.st_size
            if had != has:
                raise OSError(f"the file has {has} bytes now, and had {had}")
        tensor = self._open[file].array(self.tensors[name].name)
        shape = self.tensors[name].shape
        return tensor if tensor.shape == shape else tensor[: shape[0]]

    def get(self, name: str, index: Index = None) -> Array:
        """As `view`, or one matrix or some rows of it, after its pages have been read."""
        tensor = self.view(name)
        part = tensor if index is None else tensor[index]
        with self._reading(name):
            self._bring_in(part)
        return part

    def _bring_in(self, part: Array) -> None:
        first, end = np.lib.array_utils.byte_bounds(part)
        self._pages.bring_in(first, end - first)

    def embedding(self, name: str) -> FloatEmbedding:
        """The tensor as rows that steps read."""
        return FloatEmbedding(self.view(name))

    def same(self, other: "WeightFiles", name: str, index: int | None = None) -> bool:
        """Whether another directory, opened before, has the same bytes of a tensor, or of one
        matrix of it. No where either cannot be read, or a file was written to meanwhile.

        Cost: reads both, unless both are in one file.
        """
        own, its = self.tensors.get(name), other.tensors.get(name)
        if own is None or its is None or (own.shape, own.dtype) != (its.shape, its.dtype):
            return False
        mine, theirs = self._kept_open[own.file], other._kept_open[its.file]
        if theirs.is_changed:
            return False
        if os.path.samestat(mine.opened, theirs.opened):
            return True
        try:
            return self._equal(other, name, index)
        except ModelFileError:
            return False
        finally:
            self.give_back()
            other.give_back()

    def _equal(self, other: "WeightFiles", name: str, index: int | None) -> bool:
        mine, theirs = self._bytes(name, index), other._bytes(name, index)
        for start in range(0, len(mine), _COMPARED_BYTES):
            a, b = (one[start : start + _COMPARED_BYTES] for one in (mine, theirs))
            for files, part in ((self, a), (other, b)):
                with files._reading(name):
                    files._bring_in(part)
            if not equal(a.ctypes.data, b.ctypes.data, a.nbytes):
                return False
            self.give_back()
            other.give_back()
        return True

    def _bytes(self, name: str, index: int | None) -> Array:
        tensor = self.view(name)
        part = tensor if index is None else tensor[index]
        return bits_of(part).reshape(-1).view(np.uint8)

    def give_back(self) -> None:
        """Take the pages that `get` has read in this thread out of the process; a view reads them
        again.
        """
        self._pages.give_back()

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ModelFileError(
                f"{self.tensors[name].file}: tensor {name} cannot be read ({error}): download the "
                "file again"
            ) from error

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """Compare names and shapes with what the model needs.

        Raises:
            ModelNotFoundError: a file of the index is missing that holds some of them.
            ModelFileError: tensors are missing, left over, or have other shapes; names them.
        """
        needed = {item.name: item.shape for item in expected}
        missing = [name for name in needed if name not in self.tensors]
        if missing:
            self._refuse_lost(set(missing))
            raise ModelFileError(
                f"{self.directory}: the weights lack {some(missing)}: the download is incomplete, "
                "or config.json belongs to another model"
            )
        allowed = set(optional)
        surplus = [
            name
            for name in self.tensors
            if name not in needed and name not in allowed and not name.endswith(IGNORED_SUFFIXES)
        ]
        if surplus:
            raise ModelFileError(
                f"{self.directory}: the weights hold {some(surplus)}, which this architecture "
                "does not have: config.json belongs to another model, or the model needs support "
                "that Inlay lacks"
            )
        wrong = [
            f"{name} {list(self.tensors[name].shape)} instead of {list(shape)}"
            for name, shape in needed.items()
            if self.tensors[name].shape != shape
        ]
        if wrong:
            raise ModelFileError(
                f"{self.directory}: config.json asks for other shapes than the weights have: "
                f"{some(wrong)}"
            )
        if self._lost:
            log.warning(
                "%s: %s names %s, which its files do not hold and the model does not need",
                self.directory,
                WEIGHT_INDEX,
                some(self._lost),
            )

    def _refuse_lost(self, missing: set[str]) -> None:
        """Say of tensors that are missing in which files they should be."""
        names = sorted(set(self._index.values()))
        if gone := [name for name in names if not (self.directory / name).is_file()]:
            raise ModelNotFoundError(
                f"{self.directory} lacks {len(gone)} of {len(names)} weight files: {some(gone)}; "
                "download the model again"
            )
        own_names = _text_names(self.directory, self._lost)
        if placed := [own for name, own in own_names.items() if name in missing]:
            raise ModelFileError(
                f"{self.directory}: the index places {some(placed)} in files that do not hold "
                "them: download the model again"
            )

    def fingerprint(self, shape: ModelShape) -> str:
        """Content fingerprint: 32 hex digits, BLAKE2b.

        Covers what config.json says (as `ModelShape`), and the shards as
        `core.shard_content.add_content` has them.
        """
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps(asdict(shape), sort_keys=True).encode())
        add_content(digest, self.files)
        return digest.hexdigest()


class _KeptOpen:
    """A file that can be asked about when its name is gone, or another file has it.

    Attributes:
        opened: what the system said of it when it was opened.
    """

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self.opened = self.now

    @property
    def now(self) -> os.stat_result:
        """What the system says of it."""
        return os.fstat(self._descriptor)

    @property
    def is_changed(self) -> bool:
        """Whether it was written to since."""
        now = self.now
        return (now.st_size, now.st_mtime_ns) != (self.opened.st_size, self.opened.st_mtime_ns)


def _text_names(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """What a model of text calls its tensors, and what the files call them. Of a model of text and
    images the other tensors are left out.
    """
    names = list(names)
    for before, after in _TEXT_PREFIXES.items():
        if not any(name.startswith(before) for name in names):
            continue
        text = {
            after + name.removeprefix(before): name for name in names if name.startswith(before)
        }
        text |= {name: name for name in names if name.startswith(_HEAD)}
        log.info(
            "%s: only the text part is loaded, without %d tensors for images or sound",
            directory,
            len(names) - len(text),
        )
        return text
    return {name: name for name in names}
