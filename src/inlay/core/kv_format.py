"""How the KV of one block lies in memory. Every part that moves KV bytes goes by this.

A page is page-first: all layers of one block in one contiguous range. Inside a layer the
planes follow each other: `k`, `v` of `[page_tokens, kv_heads, head_dim]` for GQA, one latent
plane `[page_tokens, latent + rope]` for MLA. Where ranks share a model, each has a page of its own
for a block, with its heads in this layout; the latent of MLA is whole in each.
"""

import msgspec

from inlay.core.errors import ConfigError
from inlay.core.tensor_parallel import ALONE, Rank

LAYOUT_VERSION = 1
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Plane(msgspec.Struct, frozen=True):
    """One tensor of a layer inside a page.

    Attributes:
        name: `k`, `v`, or `latent`.
        width: elements per token (`kv_heads * head_dim`, or `latent + rope`).
    """

    name: str
    width: int


class KvFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Shape and dtype of one page.

    Attributes:
        page_tokens: tokens per page; equal to the block size.
        dtype: element type, a key of `DTYPE_BYTES`.
        planes: the planes of every layer, in order, as this rank has them.
        layers: number of layers.
        tp_degree, tp_rank: tensor-parallel split of `kv_heads` (1, 0 without).
        kv_heads: of the model, all ranks together; a latent counts as one.
    """

    layout_version: int = LAYOUT_VERSION
    page_tokens: int
    dtype: str
    planes: tuple[Plane, ...]
    layers: int
    tp_degree: int = 1
    tp_rank: int = 0
    kv_heads: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ConfigError(f"kv dtype {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        for name in ("page_tokens", "layers", "kv_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.planes:
            raise ConfigError("planes must not be empty")
        for plane in self.planes:
            if plane.width < 1:
                raise ConfigError(
                    f"the width of plane {plane.name!r} must be at least 1, got {plane.width}"
                )
        if not 0 <= self.tp_rank < self.tp_degree:
            raise ConfigError(f"tp_rank {self.tp_rank} is not in 0..{self.tp_degree - 1}")

    @property
    def heads(self) -> range:
        """Those of `kv_heads` that this rank has."""
        return Rank(self.tp_rank, self.tp_degree).kv_part(self.kv_heads)

    @property
    def whole(self) -> "KvFormat":
        """The layout where one process has all heads."""
        return self.of_rank(ALONE)

    def of_rank(self, rank: Rank) -> "KvFormat":
        """The layout of a rank, of as many as share a model or of another number."""
        head_count, of = len(rank.kv_part(self.kv_heads)), len(self.heads)
        planes = tuple(Plane(one.name, one.width // of * head_count) for one in self.planes)
        return msgspec.structs.replace(
            self, planes=planes, tp_degree=rank.degree, tp_rank=rank.number
        )

    @property
    def token_elements(self) -> int:
        """Elements per token and layer, all planes together."""
        return sum(plane.width for plane in self.planes)

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer inside a page."""
        return self.token_elements * self.page_tokens * DTYPE_BYTES[self.dtype]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.layer_bytes * self.layers

    def layer_range(self, page_id: int, layer: int) -> range:
        """Byte range of one layer of one page, counted from the start of the pool."""
        if page_id < 0:
            raise ConfigError(f"page_id must be at least 0, got {page_id}")
        if not 0 <= layer < self.layers:
            raise ConfigError(f"layer {layer} is not in 0..{self.layers - 1}")
        start = page_id * self.page_bytes + layer * self.layer_bytes
        return range(start, start + self.layer_bytes)


def gqa_format(
    *, layers: int, kv_heads: int, head_dim: int, dtype: str, page_tokens: int = 16
) -> KvFormat:
    """The format of a grouped-query (or multi-head) attention model."""
    width = kv_heads * head_dim
    return KvFormat(
        page_tokens=page_tokens,
        dtype=dtype,
        planes=(Plane("k", width), Plane("v", width)),
        layers=layers,
        kv_heads=kv_heads,
    )


def mla_format(*, layers: int, width: int, dtype: str, page_tokens: int = 16) -> KvFormat:
    """The format of a model with latent attention; `width` is latent and rotated key together."""
    return KvFormat(
        page_tokens=page_tokens, dtype=dtype, planes=(Plane("latent", width),), layers=layers
    )
