"""Attention over a paged KV pool: rotating and storing new tokens, attending to stored ones."""

from typing import TYPE_CHECKING

from inlay.core.errors import ArgumentError
from inlay.core.kv_format import KvFormat
from inlay.kernels import _backend
from inlay.kernels._arrays import Array

if TYPE_CHECKING:
    from inlay._native import kernels

    KvGeometry = kernels.KvGeometry
else:
    KvGeometry = _backend.ops.KvGeometry


def kv_geometry(kv_format: KvFormat, head_dim: int) -> KvGeometry:
    """The geometry of a format, as the kernels take it.

    Raises:
        ArgumentError: neither two equal planes of whole heads nor one of latents, or a dtype
            without kernels.
    """
    widths = {plane.name: plane.width for plane in kv_format.planes}
    if widths == {"latent": head_dim}:
        return KvGeometry(
            kv_format.layers, kv_format.page_tokens, 1, head_dim, kv_format.dtype, True
        )
    width = widths.get("k", 0)
    if list(widths) != ["k", "v"] or widths["v"] != width or width % head_dim != 0:
        raise ArgumentError(
            f"kv_format: planes {widths} are not k and v of heads with {head_dim} elements"
        )
    return KvGeometry(
        kv_format.layers, kv_format.page_tokens, width // head_dim, head_dim, kv_format.dtype
    )


def rope_and_store(
    qkv_TX: Array,
    positions_T: Array,
    cos_PR: Array,
    sin_PR: Array,
    kv_pool: Array,
    geometry: KvGeometry,
    layer: int,
    slots_T: Array,
    *,
    q_norm_D: Array | None = None,
    k_norm_D: Array | None = None,
    norm_eps: float = 1e-6,
    rotate_first: bool = False,
) -> None:
    """Normalise and rotate q and k in place, and write k and v into the pool.

    Args:
        qkv_TX: float32 rows of `(q_heads + 2 * kv_heads) * head_dim`: q heads, k heads, v heads; of
            a latent geometry `(q_heads + 1) * head_dim`, there is no v. Changed in place (q and k);
            any row stride, apart from the other arrays.
        positions_T: int32, below the P rows of the tables.
        cos_PR, sin_PR: float32, contiguous, `[max_positions, rotary_dim / 2]`; dimension j is
            rotated with dimension j + rotary_dim / 2, those past rotary_dim are left alone. Of a
            latent geometry the last rotary_dim ones are rotated so.
        kv_pool: `[num_pages, page_bytes]` uint8, or as the geometry's dtype; contiguous, apart from
            the other arrays.
        geometry: layout of a page.
        layer: which layer's planes to write.
        slots_T: int64, `page_id * page_tokens + offset` of each token; negative: not stored.
            Slots must differ from each other.
        q_norm_D, k_norm_D: float32 weights of an RMSNorm over each head before the rotation.
        norm_eps: of that norm.
        rotate_first: the norm comes after the rotation.

    Raises:
        ArgumentError: a shape, dtype, stride, position or slot is wrong; the message names it.

    Tolerance: 1e-6 relative; bf16 pools round to nearest even.
    """
    _backend.ops.rope_and_store(
        qkv_TX, positions_T, cos_PR, sin_PR, kv_pool, geometry, layer, slots_T,
        q_norm_D, k_norm_D, norm_eps, rotate_first,
    )  # fmt: skip


def paged_attention(
    q_THD: Array,
    kv_pool: Array,
    geometry: KvGeometry,
    layer: int,
    page_table_BP: Array,
    query_starts_B1: Array,
    context_lens_B: Array,
    scale: float,
    out_THD: Array,
    *,
    sliding_window: int = 0,
    sinks_H: Array | None = None,
    softcap: float = 0.0,
) -> None:
    """Causal attention of new tokens over their sequences' pages, decodes and chunks in one call.

    Args:
        q_THD: float32, contiguous in D; a view of fused qkv rows will do.
        kv_pool: `[num_pages, page_bytes]` uint8, or as the geometry's dtype; contiguous.
        geometry: layout of a page; q heads are a multiple of its kv heads.
        layer: which layer's planes to read.
        page_table_BP: int32, page ids of each sequence in order; columns past its context are
            not read, nor those that lie wholly before the window.
        query_starts_B1: int32, contiguous; sequence b owns tokens `[b]` up to `[b + 1]`.
        context_lens_B: int32, contiguous; tokens of each sequence in the pool, the new ones
            (its last) included.
        scale: factor of the scores, usually `head_dim ** -0.5`.
        out_THD: float32, writable, contiguous in D, apart from the other arrays. With a latent
            geometry it may have fewer elements than a key, whose leading ones are the value then.
        sliding_window: a query sees itself and that many tokens less one before; 0: all.
        sinks_H: float32, a logit per query head that joins the denominator of its softmax, as a
            token whose value is zero would; -inf: none.
        softcap: bounds the scores, `softcap * tanh(score / softcap)`, sinks not; 0: they are not
            bounded.

    Raises:
        ArgumentError: a shape, dtype, stride, range, sink or page id is wrong; the message names
            it. A NaN or an infinity in q, keys or values is no error; it reaches the queries that
            see it and no others.

    Layout: page-first, `[num_pages][layers][k, v][page_tokens][kv_heads][head_dim]`.
    Tolerance: 2e-6 of the largest value, with a softcap 1e-5; bf16 is widened exactly. The softmax
        runs online over steps of 256 tokens inside segments of 1,024, both at fixed positions of
        the sequence; a query's bits depend neither on the rest of the call nor on the threads.
    Cost: decode reads each page of the layer once per sequence, long contexts in segments on all
        threads; scratch of 0.4 MiB per thread at head_dim 128.
    """
    _backend.ops.paged_attention(
        q_THD, kv_pool, geometry, layer, page_table_BP, query_starts_B1, context_lens_B,
        scale, out_THD, sliding_window, sinks_H, softcap,
    )  # fmt: skip
