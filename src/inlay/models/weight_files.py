"""The safetensors files of a model directory: what they hold, mapped, checked, named in errors.

Tensors are views of mapped files: reading one costs page faults, not a copy, and the operating
system may drop its pages again. Knows nothing of what the tensors mean.
"""

import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.core.model_json import read_json_object, refuse_lfs_pointer
from inlay.core.model_shape import ModelShape
from inlay.core.shard_content import add_content
from inlay.models.os_pages import ReadPages, equal
from inlay.models.weight_names import IGNORED_SUFFIXES, Expected

_FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# What quantised weights are made of besides.
_CODES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
Index = int | slice | None
_COMPARED_BYTES = 8 << 20  # at a time, of each of two files


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies and what it is."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class WeightFiles:
    """All safetensors shards of one directory.

    Attributes:
        tensors: what each name is.
    """

    def __init__(self, directory: Path, *, quantized: bool = False) -> None:
        """Open and check every shard's header.

        Args:
            quantized: codes are expected, too, not floats alone.

        Raises:
            ModelNotFoundError: no weights in the directory, or a shard of the index is missing.
            ModelFileError: a file is cut off or damaged, or contradicts the index.
            UnsupportedModelError: a tensor has a dtype that is not expected.
        """
        self.directory = directory
        known = _FLOATS | _CODES if quantized else _FLOATS
        self.files, index = _find_files(directory)
        self._open: dict[Path, Any] = {file: _open_shard(file) for file in self.files}
        self._kept_open = {file: _KeptOpen(file) for file in self.files}
        self._pages = ReadPages()
        self.tensors: dict[str, TensorInfo] = {}
        for file, shard in self._open.items():
            for name in shard.keys():
                part = shard.get_slice(name)
                dtype = part.get_dtype()
                if dtype not in known:
                    raise UnsupportedModelError(
                        f"{file.name}: tensor {name} has dtype {dtype}; supported with this "
                        f"config.json are {', '.join(known)}"
                    )
                self.tensors[name] = TensorInfo(file, tuple(part.get_shape()), known[dtype])
        lost = [name for name, file in index.items() if name not in self.tensors]
        if lost:
            raise ModelFileError(
                f"{directory}: the index places {_some(lost)} in files that do not hold them: "
                "download the model again"
            )

    def holds(self, name: str) -> bool:
        """Whether it is there."""
        return name in self.tensors

    def is_bfloat16(self, name: str) -> bool:
        """Whether it is."""
        return self.tensors[name].dtype == torch.bfloat16

    def view(self, name: str) -> torch.Tensor:
        """The tensor as a view of the mapped file; do not write to it."""
        file = self.tensors[name].file
        with self._reading(name):
            # Of a file that has been cut the library would touch pages that are gone.
            had, has = self._kept_open[file].opened.st_size, self._kept_open[file].now.st_size
            if had != has:
                raise OSError(f"the file has {has} bytes now, and had {had}")
            tensor: torch.Tensor = self._open[file].get_tensor(name)
        return tensor

    def get(self, name: str, index: Index = None) -> torch.Tensor:
        """As `view`, or one matrix or some rows of it, after its pages have been read."""
        tensor = self.view(name)
        part = tensor if index is None else tensor[index]
        with self._reading(name):
            self._pages.bring_in(part.data_ptr(), part.nbytes)
        return part

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
                    files._pages.bring_in(part.data_ptr(), part.nbytes)
            if not equal(a.data_ptr(), b.data_ptr(), a.nbytes):
                return False
            self.give_back()
            other.give_back()
        return True

    def _bytes(self, name: str, index: int | None) -> torch.Tensor:
        tensor = self.view(name)
        return (tensor if index is None else tensor[index]).reshape(-1).view(torch.uint8)

    def give_back(self) -> None:
        """Take the pages that `get` has read in this thread out of the process; a view reads them
        again.
        """
        self._pages.give_back()

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (SafetensorError, RuntimeError, OSError) as error:
            raise ModelFileError(
                f"{self.tensors[name].file}: tensor {name} cannot be read ({error}): download the "
                "file again"
            ) from error

    def check(self, expected: Iterable[Expected], optional: Iterable[str]) -> None:
        """Compare names and shapes with what the model needs.

        Raises:
            ModelFileError: tensors are missing, left over, or have other shapes; names them.
        """
        needed = {item.name: item.shape for item in expected}
        missing = [name for name in needed if name not in self.tensors]
        if missing:
            raise ModelFileError(
                f"{self.directory}: the weights lack {_some(missing)}: the download is incomplete, "
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
                f"{self.directory}: the weights hold {_some(surplus)}, which this architecture "
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
                f"{_some(wrong)}"
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


def _find_files(directory: Path) -> tuple[list[Path], dict[str, str]]:
    """The shards, and the index (name -> file name) if there is one."""
    index_file = directory / "model.safetensors.index.json"
    if index_file.is_file():
        try:
            index = dict(read_json_object(index_file)["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            raise ModelFileError(
                f"{index_file} is damaged ({error!r}): download it again"
            ) from error
        if not all(isinstance(name, str) for name in index.values()):
            raise ModelFileError(f"{index_file} does not give a file name for each tensor")
        names = sorted(set(index.values()))
        foreign = [name for name in names if Path(name).name != name]
        if foreign:
            raise ModelFileError(f"{index_file} names files outside the directory: {foreign[0]!r}")
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise ModelNotFoundError(
                f"{directory} lacks {len(missing)} of {len(names)} weight files: {_some(missing)}; "
                "download the model again"
            )
        return [directory / name for name in names], index
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"], {}
    found = sorted(directory.glob("*.safetensors"))
    if found:
        return found, {}
    other = sorted(
        file.name for end in ("*.bin", "*.pt", "*.pth", "*.gguf") for file in directory.glob(end)
    )
    if other:
        raise UnsupportedModelError(
            f"{directory} holds {_some(other)} but no *.safetensors; only safetensors weights are "
            "read: take the model's safetensors variant, or convert it with transformers "
            "(`AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)`)"
        )
    raise ModelNotFoundError(f"{directory} holds no *.safetensors: download the model's weights")


def _open_shard(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        refuse_lfs_pointer(file)
        raise ModelFileError(
            f"{file} ({file.stat().st_size} bytes) is cut off or damaged ({error}): delete it and "
            "download it again"
        ) from error


def _some(names: list[str]) -> str:
    """The first few of many names, and how many more."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
