"""Inputs for kernels and their references."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay import kernels
from inlay.kernels import reference
from inlay.kernels._checks import to_bf16

F32 = npt.NDArray[np.float32]


def floats(rng: np.random.Generator, *shape: int) -> F32:
    """Gaussian fp32."""
    return rng.standard_normal(shape).astype(np.float32)


def pairs(
    rng: np.random.Generator,
    num_experts: int,
    hidden: int,
    width: int,
    format: str,
    bias: bool = False,
) -> tuple[kernels.ExpertWeights, reference.ExpertWeights]:
    """The same experts for the kernels and for the reference."""
    packed = kernels.ExpertWeights(num_experts, hidden, width, format, bias)
    plain = reference.ExpertWeights(num_experts, hidden, width, format, bias)
    for expert in range(num_experts):
        gate, up = floats(rng, width, hidden), floats(rng, width, hidden)
        down = floats(rng, hidden, width)
        biases = [floats(rng, size) for size in (width, width, hidden)] if bias else []
        for target in (packed, plain):
            target.set(expert, gate / hidden**0.5, up / hidden**0.5, down / width**0.5, *biases)
    return packed, plain


def routing(
    rng: np.random.Generator, tokens: int, num_experts: int, top_k: int
) -> tuple[npt.NDArray[np.int32], F32]:
    """Distinct random experts of each token and their weights."""
    ids = np.argsort(rng.random((tokens, num_experts)), axis=1)[:, :top_k].astype(np.int32)
    return np.ascontiguousarray(ids), rng.random((tokens, top_k)).astype(np.float32)


@dataclass
class Paged:
    """A pool with random KV on shuffled pages, and new tokens of several sequences.

    With `value_dim` it holds latents, whose leading elements are the values.
    """

    rng: np.random.Generator
    queries: Sequence[int]
    contexts: Sequence[int]
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 64
    dtype: str = "float32"
    page_tokens: int = 16
    layers: int = 2
    layer: int = 1
    window: int = 0
    sinks: F32 | None = None
    softcap: float = 0.0
    value_dim: int = 0
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        self.scale = self.head_dim**-0.5
        latent = self.value_dim > 0
        sizes = (self.layers, self.page_tokens, self.kv_heads, self.head_dim, self.dtype, latent)
        self.geometry = kernels.KvGeometry(*sizes)
        self.plain_geometry = reference.KvGeometry(*sizes)
        columns = max((-(-c // self.page_tokens) for c in self.contexts), default=1)
        num_pages = len(self.contexts) * columns + 2
        elements = floats(self.rng, num_pages, (1 if latent else 2) * np.prod(sizes[:4]))
        pool = elements if self.dtype == "float32" else to_bf16(elements)
        self.pool: npt.NDArray[Any] = pool.view(np.uint8)
        pages = self.rng.permutation(num_pages)[: len(self.contexts) * columns]
        self.page_table = pages.reshape(len(self.contexts), columns).astype(np.int32)
        tokens = sum(self.queries)
        heads = self.kv_heads * self.group
        # A view of fused rows, as an engine passes it.
        fused = floats(self.rng, tokens, (heads + 2 * self.kv_heads) * self.head_dim)
        self.q = fused[:, : heads * self.head_dim].reshape(tokens, heads, self.head_dim)

    def native(self) -> F32:
        """All sequences in one call."""
        return self.part([(b, 0, n) for b, n in enumerate(self.queries)])

    def part(self, runs: Sequence[tuple[int, int, int]]) -> F32:
        """Some queries of some sequences in one call, each (sequence, first, end)."""
        starts = np.concatenate([[0], np.cumsum(self.queries)])
        q = np.concatenate([self.q[starts[b] + i : starts[b] + j] for b, i, j in runs])
        lengths = [j - i for _, i, j in runs]
        out = np.full((*q.shape[:2], self.value_dim or self.head_dim), np.nan, np.float32)
        kernels.paged_attention(
            q,
            self.pool,
            self.geometry,
            self.layer,
            np.stack([self.page_table[b] for b, _, _ in runs]),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            np.array([self.contexts[b] - self.queries[b] + j for b, _, j in runs], np.int32),
            self.scale,
            out,
            sliding_window=self.window,
            sinks_H=self.sinks,
            softcap=self.softcap,
        )
        return out

    def reference(self) -> F32:
        """All sequences, by the reference."""
        out = np.full((*self.q.shape[:2], self.value_dim or self.head_dim), np.nan, np.float32)
        starts = np.concatenate([[0], np.cumsum(self.queries)]).astype(np.int32)
        reference.paged_attention(
            self.q,
            self.pool,
            self.plain_geometry,
            self.layer,
            self.page_table,
            starts,
            np.array(self.contexts, np.int32),
            self.scale,
            out,
            self.window,
            self.sinks,
            self.softcap,
        )
        return out
