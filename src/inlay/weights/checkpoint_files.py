"""Safetensors of a directory as entries: where each tensor lies in which file. No torch."""

import json
from dataclasses import dataclass
from pathlib import Path

from inlay.core.errors import ModelFileError, WeightsError
from inlay.core.text_files import refuse_lfs_pointer
from inlay.core.weight_index import WEIGHT_INDEX, read_weight_index
from inlay.weights.manifest import ITEM_BYTES, Entry, count

BESIDE = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
_MAX_HEADER = 100 << 20


@dataclass(frozen=True)
class Extent:
    """Part of the flat space that lies in a file.

    Attributes:
        start, size: in the flat space, in bytes.
        offset: in the file.
    """

    start: int
    size: int
    file: Path
    offset: int


def read_directory(directory: Path) -> tuple[list[Entry], list[Extent]]:
    """Entries without digests, and where they lie: tensors, then the small files beside them.

    Raises:
        WeightsError: no safetensors there, one is cut off or damaged, or one of the index is
            missing.
    """
    files = _shards(directory)
    entries: list[Entry] = []
    extents: list[Extent] = []
    seen: dict[str, Path] = {}
    at = 0
    for file in files:
        for name, dtype, shape, begin, end in _tensors(file):
            if name in seen:
                raise WeightsError(f"{name} is in {seen[name].name} and in {file.name}")
            seen[name] = file
            entries.append(Entry(name=name, dtype=dtype, shape=shape, start=at))
            _extend(extents, Extent(at, end - begin, file, begin))
            at += end - begin
    for file in sorted({path for form in BESIDE for path in directory.glob(form)}):
        if file.name == WEIGHT_INDEX or not file.is_file():  # one file will hold all tensors
            continue
        size = file.stat().st_size
        entries.append(Entry(name=file.name, dtype="", shape=(size,), start=at))
        if size:
            extents.append(Extent(at, size, file, 0))
        at += size
    return entries, extents


def _extend(extents: list[Extent], more: Extent) -> None:
    """One extent where tensors follow each other in the file, too."""
    last = extents[-1] if extents else None
    if not more.size:
        return
    if last and last.file == more.file and last.offset + last.size == more.offset:
        extents[-1] = Extent(last.start, last.size + more.size, last.file, last.offset)
    else:
        extents.append(more)


def _shards(directory: Path) -> list[Path]:
    index = directory / WEIGHT_INDEX
    if index.is_file():
        try:
            names = sorted(set(read_weight_index(index).values()))
        except ModelFileError as error:
            raise WeightsError(str(error)) from error
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise WeightsError(
                f"{directory} lacks {len(missing)} of {len(names)} weight files, {missing[0]} "
                "among them: a partial checkpoint is not published"
            )
        return [directory / name for name in names]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{directory} holds no *.safetensors: name a checkpoint's directory")
    return files


def _tensors(file: Path) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """Name, dtype, shape, and where it lies in the file, in this order."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(size - 8, _MAX_HEADER):
            refuse_lfs_pointer(file, error=WeightsError)
            raise WeightsError(f"{file} ({size} bytes) is cut off or no safetensors file")
        try:
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            found = [
                (name, str(one["dtype"]), *map(_counts, (one["shape"], one["data_offsets"])))
                for name, one in header.items()
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{file} has a damaged header ({error!r})") from error
    begin = 8 + length
    free = 0  # where the last one ended
    tensors = []
    for name, dtype, shape, offsets in sorted(found, key=lambda one: one[3]):
        if dtype not in ITEM_BYTES:
            raise WeightsError(
                f"{file}: {name} has dtype {dtype}; known are {', '.join(ITEM_BYTES)}"
            )
        if len(offsets) != 2 or not free <= offsets[0] <= offsets[1]:
            raise WeightsError(
                f"{file}: {name} has data_offsets {list(offsets)}: two are expected, first to end, "
                f"behind the tensors before, which end at {free}"
            )
        first, last = offsets
        if last - first != count(shape) * ITEM_BYTES[dtype]:
            raise WeightsError(f"{file}: {name} {dtype} {list(shape)} has {last - first} bytes")
        if begin + last > size:
            raise WeightsError(
                f"{file} has {size} bytes, and {name} ends at {begin + last}: it is cut off"
            )
        free = last
        tensors.append((name, dtype, shape, begin + first, begin + last))
    return tensors


def _counts(numbers: object) -> tuple[int, ...]:
    """Raises ValueError: it is no list of whole numbers from 0."""
    if not isinstance(numbers, list) or any(type(one) is not int or one < 0 for one in numbers):
        raise ValueError(f"{numbers!r} are no whole numbers from 0")
    return tuple(numbers)
