"""Plain NumPy form of every kernel: what the compiled ones are tested against.

Same names, arguments, results and errors as `inlay._native.kernels`; serves in its place where the
extension is missing. Written to be read, not to be fast.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inlay.core.errors import ArgumentError
from inlay.kernels._checks import (
    DTYPES,
    F32,
    array_of,
    as_f32,
    check,
    check_size,
    converted,
    dtype_name,
    vector_of,
)

MAX_GROUP = 96


# ---- dense layers -------------------------------------------------------------------------------


class LinearWeight:
    """A weight matrix, kept row-major here."""

    def __init__(self, out_features: int, in_features: int, dtype: str = "float32") -> None:
        check(out_features >= 1, f"out_features: must be at least 1, got {out_features}")
        check(in_features >= 1, f"in_features: must be at least 1, got {in_features}")
        self.dtype = dtype_name(dtype)
        self.shape = (out_features, in_features)
        self._weight_NK: npt.NDArray[Any] = np.zeros(self.shape, DTYPES[dtype])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._weight_NK.nbytes

    def set_rows(self, first: int, rows_NK: Any) -> None:
        """Fill output columns from `first` on."""
        rows = array_of(rows_NK, "rows_NK", 2, (np.float32, np.uint16))
        check_size(rows, "rows_NK", 1, self.shape[1], "in_features")
        end = first + rows.shape[0]
        check(
            0 <= first and end <= self.shape[0],
            f"first: rows {first}..{end} are outside the weight's {self.shape[0]}",
        )
        self._weight_NK[first:end] = converted(rows, self.dtype)

    def unpack(self) -> npt.NDArray[Any]:
        """The weight as `[N][K]`, bf16 as its bits."""
        return self._weight_NK.copy()


def pack_linear(weight_NK: Any, dtype: str | None = None) -> LinearWeight:
    """A `LinearWeight` holding a copy of the matrix."""
    source = array_of(weight_NK, "weight_NK", 2, (np.float32, np.uint16))
    check(min(source.shape) >= 1, f"weight_NK: has shape {source.shape}, sizes must be at least 1")
    own = "float32" if source.dtype == np.float32 else "bfloat16"
    rows, cols = source.shape
    weight = LinearWeight(rows, cols, own if dtype is None else dtype)
    weight.set_rows(0, source)
    return weight


def linear(
    x_TK: Any, weight: LinearWeight, out_TN: Any, bias_N: Any = None, accumulate: bool = False
) -> None:
    """`out = x W^T (+ bias) (+ out)`."""
    x, out = array_of(x_TK, "x_TK", 2), array_of(out_TN, "out_TN", 2, writable=True)
    check_size(x, "x_TK", 1, weight.shape[1], "the weight's inner size")
    check_size(out, "out_TN", 0, x.shape[0], "tokens of x_TK")
    check_size(out, "out_TN", 1, weight.shape[0], "the weight's output size")
    bias = vector_of(bias_N, "bias_N", weight.shape[0])
    check(not np.shares_memory(x, out), "out_TN: shares memory with x_TK")
    result = x @ as_f32(weight.unpack()).T
    if bias is not None:
        result += bias
    out[:] = out + result if accumulate else result


# ---- experts ------------------------------------------------------------------------------------


class ExpertWeights:
    """Gate, up and down matrices of one layer's experts, kept row-major here."""

    def __init__(
        self, num_experts: int, hidden: int, intermediate: int, dtype: str = "float32"
    ) -> None:
        sizes = {"num_experts": num_experts, "hidden": hidden, "intermediate": intermediate}
        for name, size in sizes.items():
            check(size >= 1, f"{name}: must be at least 1, got {size}")
        self.num_experts, self.hidden, self.intermediate = num_experts, hidden, intermediate
        self.dtype = dtype_name(dtype)
        self._gate_EFM = np.zeros((num_experts, intermediate, hidden), DTYPES[dtype])
        self._up_EFM = np.zeros_like(self._gate_EFM)
        self._down_EMF = np.zeros((num_experts, hidden, intermediate), DTYPES[dtype])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._gate_EFM.nbytes + self._up_EFM.nbytes + self._down_EMF.nbytes

    def set(self, expert: int, gate_FM: Any, up_FM: Any, down_MF: Any) -> None:
        """Fill one expert."""
        check(
            0 <= expert < self.num_experts,
            f"expert: must be in 0..{self.num_experts - 1}, got {expert}",
        )
        targets = {"gate_FM": self._gate_EFM, "up_FM": self._up_EFM, "down_MF": self._down_EMF}
        for (name, target), value in zip(targets.items(), (gate_FM, up_FM, down_MF), strict=True):
            source = array_of(value, name, 2, (np.float32, np.uint16))
            for dim in range(2):
                check_size(source, name, dim, target.shape[dim + 1], "the experts' size")
            target[expert] = converted(source, self.dtype)

    def apply(self, expert: int, x_TM: F32) -> F32:
        """`down(silu(gate x) * up x)` of one expert."""
        gate = x_TM @ as_f32(self._gate_EFM[expert]).T
        up = x_TM @ as_f32(self._up_EFM[expert]).T
        result: F32 = _silu(gate) * up @ as_f32(self._down_EMF[expert]).T
        return result


def moe(
    x_TM: Any,
    experts: ExpertWeights,
    expert_ids_TK: Any,
    routing_TK: Any,
    out_TM: Any,
    accumulate: bool = False,
) -> None:
    """Weighted sum of each token's experts, added in ascending id order."""
    x, out = array_of(x_TM, "x_TM", 2), array_of(out_TM, "out_TM", 2, writable=True)
    ids = array_of(expert_ids_TK, "expert_ids_TK", 2, np.int32)
    routing = array_of(routing_TK, "routing_TK", 2)
    check_size(x, "x_TM", 1, experts.hidden, "the experts' hidden size")
    check_size(ids, "expert_ids_TK", 0, x.shape[0], "tokens of x_TM")
    check_size(routing, "routing_TK", 0, x.shape[0], "tokens of x_TM")
    check_size(routing, "routing_TK", 1, ids.shape[1], "experts per token of expert_ids_TK")
    check_size(out, "out_TM", 0, x.shape[0], "tokens of x_TM")
    check_size(out, "out_TM", 1, experts.hidden, "the experts' hidden size")
    high = int(ids.max(initial=-1))
    check(
        high < experts.num_experts,
        f"expert_ids_TK: id {high} is not below the {experts.num_experts} experts",
    )
    check(bool(np.isfinite(routing[ids >= 0]).all()), "routing_TK: a weight is not finite")
    check(not np.shares_memory(x, out), "out_TM: shares memory with x_TM")
    if not accumulate:
        out[:] = 0
    for expert in np.unique(ids[ids >= 0]):
        tokens, places = np.nonzero(ids == expert)
        result = experts.apply(int(expert), x[tokens])
        np.add.at(out, tokens, routing[tokens, places, None] * result)


def router_topk(
    logits_TE: Any, top_k: int, normalize: bool, out_ids_TK: Any, out_weights_TK: Any
) -> None:
    """Softmax, then the `top_k` largest in descending order, ties to the lower id."""
    logits = array_of(logits_TE, "logits_TE", 2)
    ids = array_of(out_ids_TK, "out_ids_TK", 2, np.int32, writable=True)
    weights = array_of(out_weights_TK, "out_weights_TK", 2, writable=True)
    num_experts = logits.shape[1]
    check(1 <= top_k <= num_experts, f"top_k: must be in 1..{num_experts}, got {top_k}")
    for name, array in (("out_ids_TK", ids), ("out_weights_TK", weights)):
        check_size(array, name, 0, logits.shape[0], "tokens of logits_TE")
        check_size(array, name, 1, top_k, "top_k")
    check(not np.isnan(logits).any(), "logits_TE: contains NaN")
    if not len(logits):
        return
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    ids[:] = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    weights[:] = np.take_along_axis(probabilities, ids, axis=1)
    if normalize:
        weights /= weights.sum(axis=1, keepdims=True)


# ---- rows ---------------------------------------------------------------------------------------


def _silu(x: F32) -> F32:
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-x)), np.float32)


def _normalised(x: F32, weight_M: F32, eps: float) -> F32:
    mean = np.mean(x * x, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + np.float32(eps)) * weight_M, np.float32)


def _check_eps(name: str, eps: float) -> None:
    check(math.isfinite(eps) and eps >= 0, f"{name}: must be finite and not negative, got {eps}")


def rms_norm(x_TM: Any, weight_M: Any, eps: float, out_TM: Any) -> None:
    """`x / sqrt(mean(x^2) + eps) * weight`."""
    x, out = array_of(x_TM, "x_TM", 2), array_of(out_TM, "out_TM", 2, writable=True)
    check(x.shape[1] >= 1, f"x_TM: has shape {x.shape}, rows must not be empty")
    check_size(out, "out_TM", 0, x.shape[0], "rows of x_TM")
    check_size(out, "out_TM", 1, x.shape[1], "columns of x_TM")
    weight = vector_of(weight_M, "weight_M", x.shape[1])
    if weight is None:
        raise ArgumentError("weight_M: must be an array")
    _check_eps("eps", eps)
    out[:] = _normalised(x, weight, eps)


def silu_mul(gate_up_T2F: Any, out_TF: Any) -> None:
    """`silu(gate) * up` of the halves of each row."""
    gate_up = array_of(gate_up_T2F, "gate_up_T2F", 2)
    out = array_of(out_TF, "out_TF", 2, writable=True)
    check_size(out, "out_TF", 0, gate_up.shape[0], "rows of gate_up_T2F")
    check_size(gate_up, "gate_up_T2F", 1, 2 * out.shape[1], "twice the columns of out_TF")
    out[:] = _silu(gate_up[:, : out.shape[1]]) * gate_up[:, out.shape[1] :]


# ---- attention ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class KvGeometry:
    """A page-first pool: `[num_pages][layers][k, v][page_tokens][kv_heads][head_dim]`."""

    layers: int
    page_tokens: int
    kv_heads: int
    head_dim: int
    dtype: str

    def __post_init__(self) -> None:
        limits = {"layers": 1 << 20, "page_tokens": 1 << 20, "kv_heads": 65536, "head_dim": 1024}
        for name, limit in limits.items():
            value = getattr(self, name)
            check(1 <= value <= limit, f"{name}: must be in 1..{limit}, got {value}")
        dtype_name(self.dtype)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        elements = 2 * self.layers * self.page_tokens * self.kv_heads * self.head_dim
        return elements * np.dtype(DTYPES[self.dtype]).itemsize

    def planes(self, kv_pool: Any, layer: int, writable: bool = False) -> npt.NDArray[Any]:
        """A view `[num_pages][k, v][page_tokens][kv_heads][head_dim]` of one layer."""
        dtype = DTYPES[self.dtype]
        pool = array_of(kv_pool, "kv_pool", 2, (np.uint8, dtype), writable)
        check(
            pool.shape[1] * pool.itemsize == self.page_bytes,
            f"kv_pool: its pages have {pool.shape[1] * pool.itemsize} bytes, the geometry's page "
            f"has {self.page_bytes}",
        )
        check(0 <= layer < self.layers, f"layer: must be in 0..{self.layers - 1}, got {layer}")
        shape = (len(pool), self.layers, 2, self.page_tokens, self.kv_heads, self.head_dim)
        return pool.view(dtype).reshape(shape)[:, layer]


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
) -> None:
    """Normalise and rotate q and k in place, write k and v into the pool."""
    g = geometry
    qkv = array_of(qkv_TX, "qkv_TX", 2, writable=True)
    positions = array_of(positions_T, "positions_T", 1, np.int32)
    slots = array_of(slots_T, "slots_T", 1, np.int64)
    cos, sin = array_of(cos_PR, "cos_PR", 2), array_of(sin_PR, "sin_PR", 2)
    planes = g.planes(kv_pool, layer, writable=True)
    q_heads = qkv.shape[1] // g.head_dim - 2 * g.kv_heads
    check(
        qkv.shape[1] % g.head_dim == 0 and q_heads >= 1,
        f"qkv_TX: its rows have {qkv.shape[1]} elements, expected (q_heads + 2 * kv_heads) * "
        f"head_dim with {g.kv_heads} kv_heads and head_dim {g.head_dim}",
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
    _check_eps("norm_eps", norm_eps)
    check(
        bool(((positions >= 0) & (positions < len(cos))).all()),
        f"positions_T: a position is not in 0..{len(cos) - 1}",
    )
    max_slots = len(planes) * g.page_tokens
    check(bool((slots < max_slots).all()), f"slots_T: a slot is not below the pool's {max_slots}")

    heads = qkv.reshape(len(qkv), q_heads + 2 * g.kv_heads, g.head_dim).copy()
    split = (slice(0, q_heads), slice(q_heads, q_heads + g.kv_heads))
    for part, norm in zip(split, norms, strict=True):
        if norm is not None:
            heads[:, part] = _normalised(heads[:, part], norm, norm_eps)
        _rotate(heads[:, part], cos[positions], sin[positions])
    qkv[:] = heads.reshape(qkv.shape)
    stored = slots >= 0
    page_ids, offsets = np.divmod(slots[stored], g.page_tokens)
    kv = heads[stored, q_heads:].reshape(-1, 2, g.kv_heads, g.head_dim)
    for plane in range(2):
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
        rest == 0 and 1 <= group <= MAX_GROUP,
        f"q_THD: has {q.shape[1]} heads, expected 1 to {MAX_GROUP} per each of the "
        f"{g.kv_heads} kv_heads",
    )
    check_size(q, "q_THD", 2, g.head_dim, "head_dim")
    for dim in range(3):
        check_size(out, "out_THD", dim, q.shape[dim], "the shape of q_THD")
    check_size(starts, "query_starts_B1", 0, len(contexts) + 1, "one more than context_lens_B")
    check_size(table, "page_table_BP", 0, len(contexts), "sequences of context_lens_B")
    check(math.isfinite(scale), f"scale: must be finite, got {scale}")
    check(sliding_window >= 0, f"sliding_window: must be 0 or more, got {sliding_window}")
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
        k, v = (np.repeat(kv[:, plane], group, axis=1) for plane in range(2))
        scores = np.einsum("qhd,khd->hqk", q[begin:end] * np.float32(scale), k)
        hidden = keys[None] > positions[:, None]
        if sliding_window:
            hidden |= keys[None] <= positions[:, None] - sliding_window
        scores[:, hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        out[begin:end] = np.einsum("hqk,khd->qhd", weights, v)


# ---- block identity -----------------------------------------------------------------------------


def block_hash_chain(
    namespace_key: bytes, parent: bytes, token_ids: Any, block_tokens: int
) -> bytes:
    """Digests of all full blocks, joined."""
    check(
        len(namespace_key) <= 64,
        f"namespace_key: must have at most 64 bytes, got {len(namespace_key)}",
    )
    check(len(parent) == 16, f"parent: must have 16 bytes, got {len(parent)}")
    check(block_tokens >= 1, f"block_tokens: must be at least 1, got {block_tokens}")
    data = array_of(token_ids, "token_ids", 1, np.uint32).astype("<u4").tobytes()
    step = 4 * block_tokens
    digests = []
    for start in range(0, len(data) - step + 1, step):
        block = parent + data[start : start + step]
        parent = hashlib.blake2b(block, digest_size=16, key=namespace_key).digest()
        digests.append(parent)
    return b"".join(digests)
