"""Attention over a paged KV pool."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.kernels._checks import (
    DTYPES,
    F32,
    MAX_BYTES,
    array_of,
    as_f32,
    check,
    check_apart,
    check_size,
    converted,
    dtype_name,
    vector_of,
)
from inlay.kernels.reference.rows import check_eps, normalised

MAX_GROUP = 96


@dataclass(frozen=True)
class KvGeometry:
    """A page-first pool: `[num_pages][layers][k, v][page_tokens][kv_heads][head_dim]`, of latents
    with k alone.
    """

    layers: int
    page_tokens: int
    kv_heads: int
    head_dim: int
    dtype: str
    latent: bool = False

    def __post_init__(self) -> None:
        limits = {"layers": 1 << 20, "page_tokens": 1 << 20, "kv_heads": 65536, "head_dim": 1024}
        for name, limit in limits.items():
            value = getattr(self, name)
            check(1 <= value <= limit, f"{name}: must be in 1..{limit}, got {value}")
        check(self.head_dim % 2 == 0, f"head_dim: must be even, got {self.head_dim}")
        check(not self.latent or self.kv_heads == 1, f"kv_heads: must be 1, got {self.kv_heads}")
        dtype_name(self.dtype)
        check(
            self.page_bytes <= MAX_BYTES,
            f"layers: {self.layers} make a page of more than 2^47 bytes",
        )

    @property
    def num_planes(self) -> int:
        """Of a layer."""
        return 1 if self.latent else 2

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        elements = self.num_planes * self.layers * self.page_tokens * self.kv_heads * self.head_dim
        return elements * np.dtype(DTYPES[self.dtype]).itemsize

    def planes(self, kv_pool: Any, layer: int, writable: bool = False) -> npt.NDArray[Any]:
        """A view `[num_pages][planes][page_tokens][kv_heads][head_dim]` of one layer."""
        dtype = DTYPES[self.dtype]
        pool = array_of(kv_pool, "kv_pool", 2, (np.uint8, dtype), writable)
        check(
            pool.shape[1] * pool.itemsize == self.page_bytes,
            f"kv_pool: its pages have {pool.shape[1] * pool.itemsize} bytes, the geometry's page "
            f"has {self.page_bytes}",
        )
        check(0 <= layer < self.layers, f"layer: must be in 0..{self.layers - 1}, got {layer}")
        planes = (self.num_planes, self.page_tokens, self.kv_heads, self.head_dim)
        return pool.view(dtype).reshape(len(pool), self.layers, *planes)[:, layer]


def _rotate(x_THD: F32, cos_TR: F32, sin_TR: F32) -> None:
    half = cos_TR.shape[1]
    a, b = x_THD[..., :half].copy(), x_THD[..., half : 2 * half].copy()
    cos, sin = cos_TR[:, None], sin_TR[:, None]
    x_THD[..., :half] = a * cos - b * sin
    x_THD[..., half : 2 * half] = b * cos + a * sin


def rope_and_store(
    qkv_TX: Any,
    positions_T: Any,
    cos_PR: Any,
    sin_PR: Any,
    kv_pool: Any,
    geometry: KvGeometry,
    layer: int,
    slots_T: Any,
    q_norm_D: Any = None,
    k_norm_D: Any = None,
    norm_eps: float = 1e-6,
    rotate_first: bool = False,
) -> None:
    """Normalise and rotate q and k in place, write k and v into the pool."""
    g = geometry
    qkv = array_of(qkv_TX, "qkv_TX", 2, writable=True)
    positions = array_of(positions_T, "positions_T", 1, np.int32)
    slots = array_of(slots_T, "slots_T", 1, np.int64)
    cos, sin = array_of(cos_PR, "cos_PR", 2), array_of(sin_PR, "sin_PR", 2)
    planes = g.planes(kv_pool, layer, writable=True)
    q_heads = qkv.shape[1] // g.head_dim - g.num_planes * g.kv_heads
    check(
        qkv.shape[1] % g.head_dim == 0 and q_heads >= 1,
        f"qkv_TX: its rows have {qkv.shape[1]} elements, expected (q_heads + {g.num_planes} * "
        f"kv_heads) * head_dim with {g.kv_heads} kv_heads and head_dim {g.head_dim}",
    )
    check_size(positions, "positions_T", 0, len(qkv), "tokens of qkv_TX")
    check_size(slots, "slots_T", 0, len(qkv), "tokens of qkv_TX")
    check(
        2 * cos.shape[1] <= g.head_dim,
        f"cos_PR: has {cos.shape[1]} columns, at most head_dim / 2 = {g.head_dim // 2} fit",
    )
    check_size(sin, "sin_PR", 0, cos.shape[0], "positions of cos_PR")
    check_size(sin, "sin_PR", 1, cos.shape[1], "columns of cos_PR")
    norms = vector_of(q_norm_D, "q_norm_D", g.head_dim), vector_of(k_norm_D, "k_norm_D", g.head_dim)
    check_eps("norm_eps", norm_eps)
    check(
        bool(((positions >= 0) & (positions < len(cos))).all()),
        f"positions_T: a position is not in 0..{len(cos) - 1}",
    )
    max_slots = len(planes) * g.page_tokens
    check(bool((slots < max_slots).all()), f"slots_T: a slot is not below the pool's {max_slots}")

    inputs = {"positions_T": positions, "cos_PR": cos, "sin_PR": sin, "slots_T": slots}
    weights = {"q_norm_D": norms[0], "k_norm_D": norms[1]}
    check_apart("qkv_TX", qkv, kv_pool=planes, **inputs, **weights)
    check_apart("kv_pool", planes, **inputs, **weights)

    heads = qkv.reshape(len(qkv), q_heads + g.num_planes * g.kv_heads, g.head_dim).copy()
    start = g.head_dim - 2 * cos.shape[1] if g.latent else 0
    split = (slice(0, q_heads), slice(q_heads, q_heads + g.kv_heads))
    for part, norm in zip(split, norms, strict=True):
        if rotate_first:
            _rotate(heads[:, part, start:], cos[positions], sin[positions])
        if norm is not None:
            heads[:, part] = normalised(heads[:, part], norm, norm_eps)
        if not rotate_first:
            _rotate(heads[:, part, start:], cos[positions], sin[positions])
    qkv[:] = heads.reshape(qkv.shape)
    stored = slots >= 0
    page_ids, offsets = np.divmod(slots[stored], g.page_tokens)
    kv = heads[stored, q_heads:].reshape(-1, g.num_planes, g.kv_heads, g.head_dim)
    for plane in range(g.num_planes):
        planes[page_ids, plane, offsets] = converted(kv[:, plane], g.dtype)


def paged_attention(
    q_THD: Any,
    kv_pool: Any,
    geometry: KvGeometry,
    layer: int,
    page_table_BP: Any,
    query_starts_B1: Any,
    context_lens_B: Any,
    scale: float,
    out_THD: Any,
    sliding_window: int = 0,
    sinks_H: Any = None,
    softcap: float = 0.0,
) -> None:
    """Causal attention of new tokens over their sequences' pages."""
    g = geometry
    q, out = array_of(q_THD, "q_THD", 3), array_of(out_THD, "out_THD", 3, writable=True)
    table = array_of(page_table_BP, "page_table_BP", 2, np.int32)
    starts = array_of(query_starts_B1, "query_starts_B1", 1, np.int32)
    contexts = array_of(context_lens_B, "context_lens_B", 1, np.int32)
    planes = g.planes(kv_pool, layer)
    group, rest = divmod(q.shape[1], g.kv_heads)
    check(
        rest == 0 and 1 <= group and (g.latent or group <= MAX_GROUP),
        f"q_THD: has {q.shape[1]} heads, expected 1 to {MAX_GROUP} per each of the "
        f"{g.kv_heads} kv_heads",
    )
    check_size(q, "q_THD", 2, g.head_dim, "head_dim")
    for dim in range(2 if g.latent else 3):
        check_size(out, "out_THD", dim, q.shape[dim], "the shape of q_THD")
    value_dim = out.shape[2]
    check(
        2 <= value_dim <= g.head_dim and value_dim % 2 == 0,
        f"out_THD: has {value_dim} elements per head, expected an even number up to {g.head_dim}, "
        "the geometry's head_dim",
    )
    check_size(starts, "query_starts_B1", 0, len(contexts) + 1, "one more than context_lens_B")
    check_size(table, "page_table_BP", 0, len(contexts), "sequences of context_lens_B")
    check(math.isfinite(scale), f"scale: must be finite, got {scale}")
    check(sliding_window >= 0, f"sliding_window: must be 0 or more, got {sliding_window}")
    check(
        math.isfinite(softcap) and softcap >= 0,
        f"softcap: must be finite and not negative, got {softcap}",
    )
    sinks = vector_of(sinks_H, "sinks_H", q.shape[1])
    if sinks is None:
        sinks = np.full(q.shape[1], -np.inf, np.float32)
    check_apart(
        "out_THD", out, q_THD=q, kv_pool=planes, page_table_BP=table, query_starts_B1=starts,
        context_lens_B=contexts, sinks_H=sinks,
    )  # fmt: skip
    check(bool((sinks < np.inf).all()), "sinks_H: must be numbers or -inf")
    check(
        starts[0] == 0 and starts[-1] == len(q),
        f"query_starts_B1: must begin with 0 and end with the {len(q)} tokens of q_THD",
    )
    check(bool((np.diff(starts) >= 0).all()), "query_starts_B1: decreases")
    check(
        bool((contexts >= np.diff(starts)).all()),
        "context_lens_B: less than the new tokens of a sequence",
    )
    for b, context in enumerate(contexts.tolist()):
        begin, end = starts[b : b + 2].tolist()
        if begin == end:
            continue
        positions = np.arange(context - (end - begin), context)
        first = max(0, int(positions[0]) + 1 - sliding_window) if sliding_window else 0
        keys = np.arange(first, context)
        check(
            -(-context // g.page_tokens) <= table.shape[1],
            f"page_table_BP: has {table.shape[1]} columns, too few for sequence {b}",
        )
        page_ids = table[b, keys // g.page_tokens]
        check(
            bool(((page_ids >= 0) & (page_ids < len(planes))).all()),
            f"page_table_BP: a page of sequence {b} is not in 0..{len(planes) - 1}",
        )
        kv = as_f32(planes[page_ids, :, keys % g.page_tokens])
        k, v = (np.repeat(kv[:, plane], group, axis=1) for plane in (0, -1))
        v = v[..., :value_dim]
        # Query by query: a weight of 0 for what one does not see would pass on its NaN.
        for token, position in zip(range(begin, end), positions.tolist(), strict=True):
            seen = slice(
                max(0, position + 1 - sliding_window) - first if sliding_window else 0,
                position + 1 - first,
            )
            scores = np.einsum("hd,khd->hk", q[token] * np.float32(scale), k[seen])
            if softcap:
                scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
            largest = np.maximum(scores.max(axis=1), sinks)[:, None]
            weights = np.exp(scores - largest)
            weights /= weights.sum(axis=1, keepdims=True) + np.exp(sinks[:, None] - largest)
            out[token] = np.einsum("hk,khd->hd", weights, v[seen])
