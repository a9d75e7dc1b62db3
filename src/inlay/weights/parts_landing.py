"""Boxes of tensors, in dtypes of one's own: another layout than the publishers have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import WeightsMismatchError
from inlay.weights.boxes import Box, boxes_of_run
from inlay.weights.dtypes import check_conversion, convert, raw_dtype
from inlay.weights.landing import Bytes, RingLanding
from inlay.weights.manifest import ITEM_BYTES, Entry, Manifest


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
                wanted[piece] = bool(_hits(entry, at * items, stop, self._boxes[entry.name]))
        return wanted

    def put(self, entry: Entry, start: int, content: Bytes) -> None:
        """As `RingLanding`: what of it is in the box."""
        name = entry.name
        put_run(entry, start, content, self.arrays[name], self._boxes[name], self.dtypes[name])

    def finish(self) -> None:
        """As `Landing`."""


def put_run(
    entry: Entry, start: int, content: Bytes, array: npt.NDArray[Any], wanted: Box, dtype: str
) -> None:
    """Bytes of an entry, from `start` on: what of them is in the box that an array holds.

    Args:
        array: of raw elements, as large as the box.
        dtype: of the array.
    """
    item = ITEM_BYTES[entry.dtype]
    elements = content.view(raw_dtype(entry.dtype))
    for at, box, common in _hits(entry, start // item, (start + len(content)) // item, wanted):
        run = elements[at : at + int(np.prod(box.shape))].reshape(box.shape)
        some = run[common.index(box.corner)]
        array[common.index(wanted.corner)] = convert(some, entry.dtype, dtype)


def _hits(entry: Entry, start: int, stop: int, wanted: Box) -> list[tuple[int, Box, Box]]:
    """Of a run of elements: where each box begins in it, the box, and what is wanted of it."""
    hits, at = [], 0
    for run in boxes_of_run(start, stop, entry.shape):
        box = run.moved(entry.at)
        if (common := box.common(wanted)) is not None:
            hits.append((at, box, common))
        at += int(np.prod(box.shape))
    return hits
