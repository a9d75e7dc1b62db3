"""Which bytes of a page one rank sends to a rank of another instance, whose degree may be another.

Where both have the same heads, a page goes as it is. Else each token has its own piece in each
plane, the heads that both have: degrees are converted by where bytes are put, and nothing is copied
in between. Of ranks that have the same head one sends it; those that want it are shared out among
them.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from inlay.core.kv_format import DTYPE_BYTES, KvFormat
from inlay.core.tensor_parallel import Rank

_Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PageRanges:
    """Ranges of a page here and of one there, in bytes from their starts; all of one length.

    Attributes:
        here, there: where they begin, equally many.
        length: of each.
    """

    here: _Offsets
    there: _Offsets
    length: int


@lru_cache(maxsize=4096)
def page_ranges(mine: KvFormat, its: KvFormat, layer: int | None) -> PageRanges | None:
    """What a rank sends of each page to a rank of another instance; None: nothing.

    Args:
        mine, its: layouts of the two, which differ in nothing but their rank and degree.
        layer: None: all layers.

    Cost: kept for later calls; offsets of a layer are 16 bytes for each token and plane.
    """
    heads = _sent(mine, its)
    if not heads:
        return None
    skip = 0 if layer is None else layer
    if heads == mine.heads == its.heads:
        length = mine.page_bytes if layer is None else mine.layer_bytes
        start = np.array([skip * mine.layer_bytes], np.int64)
        return PageRanges(start, start, length)
    layers = range(mine.layers) if layer is None else range(layer, layer + 1)
    (head_elements,) = {plane.width // len(mine.heads) for plane in mine.planes}
    head_bytes = head_elements * DTYPE_BYTES[mine.dtype]
    return PageRanges(
        _starts(mine, heads, layers), _starts(its, heads, layers), len(heads) * head_bytes
    )


def _sent(mine: KvFormat, its: KvFormat) -> range:
    """The heads that this rank sends to that one: neighbours, as a rank has either several heads of
    its own or one that others have, too.
    """
    sent = [head for head in its.heads if _sender(head, mine, its) == mine.tp_rank]
    return range(sent[0], sent[-1] + 1) if sent else range(0)


def _sender(head: int, mine: KvFormat, its: KvFormat) -> int:
    degree, kv_heads = mine.tp_degree, mine.kv_heads
    have = [rank for rank in range(degree) if head in Rank(rank, degree).kv_part(kv_heads)]
    return have[its.tp_rank % len(have)]


def _starts(kv_format: KvFormat, heads: range, layers: range) -> _Offsets:
    """Where these heads begin, of each token in each plane of the layers."""
    item_bytes = DTYPE_BYTES[kv_format.dtype]
    tokens_T = np.arange(kv_format.page_tokens, dtype=np.int64)
    starts, plane_start = [], 0
    for plane in kv_format.planes:
        head_elements = plane.width // len(kv_format.heads)
        first = plane_start + (heads.start - kv_format.heads.start) * head_elements
        starts.append(first + tokens_T * plane.width)
        plane_start += plane.width * kv_format.page_tokens
    layer_starts = np.array(layers, np.int64) * kv_format.layer_bytes
    return np.add.outer(layer_starts, np.concatenate(starts) * item_bytes).ravel()
