"""What kernels/gpu times for each kernel: calls of ours and of PyTorch's libraries, and their work.

Shapes: T rows, N output columns, K input columns of a matrix or choices of a token, H heads, M
model width, F expert width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from benchmarks.kernels.gpu_time import Call
from benchmarks.kernels.layers import LayerShape
from inlay import kernels
from inlay.core.model_shape import RouterShape
from inlay.models.gpu.attention import Paged, attention
from inlay.models.gpu.expert_adapters import AddedPairs, GpuExpertAdapter
from inlay.models.gpu.experts import GpuExperts
from inlay.models.gpu.linear import linear, linear_heads
from inlay.models.gpu.panels import Panels
from inlay.models.gpu.rope import rope_and_store
from inlay.models.gpu.route import route

Params = Mapping[str, Any]

CALLS = 8
"""That a replay makes on a GPU."""
PAST_CACHES_BYTES = 256 << 20
"""Of the data of a replay's calls together: several times a GPU's largest cache."""

_DRAWN_ROWS = 64  # of a matrix; the others repeat them, which saves minutes
_PACKED_EXPERTS = 8  # on the host; a GPU's slots hold copies of them
_PAGE_TOKENS = 16
_FLOAT = 4  # bytes; rows of activations come and go as float32


@dataclass(frozen=True, kw_only=True)
class Sides:
    """One point.

    Attributes:
        ours, peers: the calls of a replay.
        nbytes: that a call reads and writes in the GPU's memory.
        operations: of a call, two for each multiply-add.
    """

    ours: Sequence[Call]
    nbytes: float
    operations: float = 0.0
    peers: Mapping[str, Sequence[Call]] = field(default_factory=dict)


def sides_of(point: Params, device: torch.device) -> Sides:
    """Make the data of a point of kernels/gpu, and what is called on it."""
    return _MAKERS[point["kernel"]](point, device)


def library(name: str) -> str:
    """The label of a peer: the release of PyTorch decides how fast it is."""
    return f"{name} (torch {torch.__version__.partition('+')[0]})"


def _in_turn(
    call: Callable[[Any], object], data: Sequence[Any], device: torch.device
) -> list[Call]:
    """The calls of a replay, each on the next of the data."""
    count = CALLS if device.type == "cuda" else 1
    return [partial(call, data[index % len(data)]) for index in range(count)]


def _copies(nbytes: int, device: torch.device) -> int:
    """How many copies of some data take turns."""
    return min(CALLS, -(-PAST_CACHES_BYTES // nbytes)) if device.type == "cuda" else 1


def _drawn(rows: int, columns: int) -> np.ndarray[Any, Any]:
    base = np.random.default_rng(0).standard_normal((_DRAWN_ROWS, columns), np.float32)
    return np.tile(base, (-(-rows // _DRAWN_ROWS), 1))[:rows]


@lru_cache(2)  # points that differ in rows alone follow each other
def _packed(columns: int, size_k: int, weight_format: str) -> np.ndarray[Any, Any]:
    """The panels of a matrix."""
    weight = kernels.LinearWeight(columns, size_k, weight_format)
    weight.set_rows(0, _drawn(columns, size_k))
    return weight.panels()


def _linear(point: Params, device: torch.device) -> Sides:
    rows, columns, size_k = point["rows"], point["n"], point["k"]
    panels = _packed(columns, size_k, point["format"])
    weights = []
    for _ in range(_copies(panels.nbytes, device)):
        weights.append(Panels.empty(1, columns, size_k, point["format"], device))
        weights[-1].set(0, panels)
    x_TK = torch.randn(rows, size_k, device=device)
    out_TN = torch.empty(rows, columns, device=device)
    peers = {}
    if device.type == "cuda":
        narrow_TK = x_TK.bfloat16()
        count = _copies(2 * columns * size_k, device)
        dense = torch.randn(count, columns, size_k, device=device, dtype=torch.bfloat16)
        peers[library("cuBLAS bf16")] = _in_turn(
            lambda weight_NK: narrow_TK @ weight_NK.T, list(dense), device
        )
    return Sides(
        ours=_in_turn(lambda weight: linear(x_TK, weight, out_TN), weights, device),
        nbytes=panels.nbytes + _FLOAT * rows * (columns + size_k),
        operations=2.0 * rows * columns * size_k,
        peers=peers,
    )


def _linear_heads(point: Params, device: torch.device) -> Sides:
    rows, heads, columns, size_k = (point[name] for name in ("rows", "heads", "n", "k"))
    weight = Panels.empty(heads, columns, size_k, point["format"], device)
    panels = _packed(columns, size_k, point["format"])
    for head in range(heads):
        weight.set(head, panels)
    x_THK = torch.randn(rows, heads, size_k, device=device)
    out_THN = torch.empty(rows, heads, columns, device=device)
    return Sides(
        ours=_in_turn(lambda one: linear_heads(x_THK, one, out_THN), [weight], device),
        nbytes=weight.data.nbytes + _FLOAT * rows * heads * (columns + size_k),
        operations=2.0 * rows * heads * columns * size_k,
    )


def host_experts(shape: LayerShape, count: int, weight_format: str) -> kernels.ExpertWeights:
    """Experts of the host, the same weights in each."""
    host = kernels.ExpertWeights(count, shape.hidden, shape.intermediate, weight_format, False)
    gate = _drawn(shape.intermediate, shape.hidden) / shape.hidden**0.5
    down = _drawn(shape.hidden, shape.intermediate) / shape.intermediate**0.5
    for expert in range(count):
        host.set(expert, gate, gate, down)
    return host


def _experts(point: Params, device: torch.device) -> Sides:
    shape, rows = LayerShape.of(point), point["rows"]
    there = GpuExperts(shape.experts, shape.hidden, shape.intermediate, point["format"], device)
    packed = host_experts(shape, min(_PACKED_EXPERTS, shape.experts), point["format"])
    for slot in range(shape.experts):
        there.set_slot(slot, packed, slot % packed.num_experts)
    scores = torch.rand(CALLS, rows, shape.experts, device=device)
    ids_CTK = scores.topk(shape.top_k).indices.int()
    routing_TK = torch.rand(rows, shape.top_k, device=device)
    x_TM = torch.randn(rows, shape.hidden, device=device)
    out_TM = torch.zeros_like(x_TM)
    touched = sum(len(ids.unique()) for ids in ids_CTK) / len(ids_CTK)
    adapter = _adapter(shape, point["rank"], device) if "rank" in point else None
    first_T = torch.zeros(rows, dtype=torch.int32, device=device)

    def call(ids_TK: Tensor) -> None:
        added = None if adapter is None else AddedPairs([adapter], first_T, ids_TK)
        there.moe(x_TM, ids_TK, routing_TK, out_TM, added=added)

    all_nbytes = there.nbytes + (adapter.nbytes if adapter else 0)
    return Sides(
        ours=_in_turn(call, list(ids_CTK), device),
        nbytes=all_nbytes * touched / shape.experts + 2 * x_TM.nbytes,
        operations=shape.operations(rows),
        peers={} if adapter else _grouped(shape, rows, device),
    )


def _adapter(shape: LayerShape, rank: int, device: torch.device) -> GpuExpertAdapter:
    wide, narrow = shape.hidden, shape.intermediate
    sizes = {"gate": (wide, narrow), "up": (wide, narrow), "down": (narrow, wide)}
    rng = np.random.default_rng(0)

    def matrix(*size: int) -> NDArray[np.float32]:
        return np.float32(0.01) * rng.standard_normal(size, np.float32)

    pairs = {
        (expert, name): (matrix(rank, before), matrix(after, rank), 1.0)
        for expert in range(shape.experts)
        for name, (before, after) in sizes.items()
    }
    return GpuExpertAdapter(shape.experts, wide, narrow, pairs, device)


def _grouped(shape: LayerShape, rows: int, device: torch.device) -> dict[str, list[Call]]:
    """The library's products, with as many rows for each expert."""
    pairs = rows * shape.top_k
    if device.type != "cuda" or pairs < shape.experts:
        return {}
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    gate_up = torch.randn(shape.experts, 2 * shape.intermediate, shape.hidden, **options)
    down = torch.randn(shape.experts, shape.hidden, shape.intermediate, **options)
    x_PM = torch.randn(pairs, shape.hidden, **options)
    active_PF = torch.randn(pairs, shape.intermediate, **options)
    ends_E = (torch.arange(1, shape.experts + 1, device=device) * pairs // shape.experts).int()

    def products(_: object) -> None:
        torch._grouped_mm(x_PM, gate_up.transpose(1, 2), offs=ends_E)
        torch._grouped_mm(active_PF, down.transpose(1, 2), offs=ends_E)

    return {library("torch._grouped_mm bf16"): _in_turn(products, [None], device)}


def _attention(point: Params, device: torch.device) -> Sides:
    """`new` tokens of each request at the end of its context; value_dim: of latent attention."""
    heads, kv_heads, width, value_dim, requests, new, context = (
        point[name]
        for name in ("heads", "kv_heads", "head_dim", "value_dim", "requests", "new", "context")
    )
    dtype = getattr(torch, point["format"])
    pages = -(-context // _PAGE_TOKENS)
    size = (requests * pages, 1, 1 if value_dim else 2, _PAGE_TOKENS, kv_heads, width)
    whole_nbytes = int(np.prod(size)) * dtype.itemsize
    table_BP = torch.randperm(requests * pages, device=device).int().view(requests, pages)
    starts_B1 = torch.arange(requests + 1, device=device, dtype=torch.int32) * new
    lens_B = torch.full((requests,), context, device=device, dtype=torch.int32)
    pools = [
        Paged(torch.randn(size, device=device).to(dtype), 0, table_BP, starts_B1, lens_B)
        for _ in range(_copies(whole_nbytes, device))
    ]
    q_THD = torch.randn(requests * new, heads, width, device=device)
    out_THV = torch.empty(requests * new, heads, value_dim or width, device=device)
    pairs = requests * (new * context - new * (new - 1) / 2)
    return Sides(
        ours=_in_turn(
            lambda pool: attention(q_THD, pool, out_THV, scale=width**-0.5, value_dim=value_dim),
            pools,
            device,
        ),
        nbytes=whole_nbytes + q_THD.nbytes + out_THV.nbytes,
        operations=2.0 * pairs * heads * (width + (value_dim or width)),
        peers={} if value_dim else _sdpa(point, device, dtype),
    )


def _sdpa(point: Params, device: torch.device, dtype: torch.dtype) -> dict[str, list[Call]]:
    """The library's attention, on keys and values that lie together."""
    if device.type != "cuda":
        return {}
    new, context = point["new"], point["context"]
    # A mask keeps the library from sharing heads by itself.
    masked = 1 < new < context
    kv_heads = point["heads"] if masked else point["kv_heads"]
    size = (2, point["requests"], kv_heads, context, point["head_dim"])
    nbytes = 2 * int(np.prod(size))
    data = [torch.randn(size, device=device, dtype=dtype) for _ in range(_copies(nbytes, device))]
    q = torch.randn(
        point["requests"], point["heads"], new, point["head_dim"], device=device, dtype=dtype
    )
    options: dict[str, Any] = {"enable_gqa": True, "is_causal": new == context}
    if masked:
        options = {"attn_mask": causal_lower_right(new, context)}
    return {
        library("SDPA"): _in_turn(
            lambda kv: F.scaled_dot_product_attention(q, *kv, **options), data, device
        )
    }


def _route(point: Params, device: torch.device) -> Sides:
    rows, experts, top_k = point["rows"], point["experts"], point["top_k"]
    logits_TE = torch.randn(rows, experts, device=device)
    ids_TK = torch.empty(rows, top_k, dtype=torch.int32, device=device)
    weights_TK = torch.empty(rows, top_k, device=device)
    router = RouterShape(normalize=True)
    return Sides(
        ours=_in_turn(
            lambda logits: route(logits, router, None, ids_TK, weights_TK), [logits_TE], device
        ),
        nbytes=logits_TE.nbytes + ids_TK.nbytes + weights_TK.nbytes,
    )


def _rope(point: Params, device: torch.device) -> Sides:
    rows, heads, kv_heads, width = (
        point[name] for name in ("rows", "heads", "kv_heads", "head_dim")
    )
    pages = -(-rows // _PAGE_TOKENS)
    data = torch.zeros(pages, 1, 2, _PAGE_TOKENS, kv_heads, width, device=device).bfloat16()
    qkv_TX = torch.randn(rows, (heads + 2 * kv_heads) * width, device=device)
    angles_TC = torch.rand(rows, width // 2, device=device)
    slots_T = torch.arange(rows, device=device)
    norm_D = torch.ones(width, device=device)

    def call(cos_TC: Tensor) -> None:
        rope_and_store(
            qkv_TX, cos_TC, angles_TC, data, 0, slots_T, heads=heads, q_norm_D=norm_D,
            k_norm_D=norm_D,
        )  # fmt: skip

    return Sides(
        ours=_in_turn(call, [angles_TC], device),
        nbytes=2 * qkv_TX.nbytes + 2 * rows * 2 * kv_heads * width + 2 * angles_TC.nbytes,
    )


_MAKERS = {
    "attention": _attention,
    "experts": _experts,
    "experts_with_adapter": _experts,
    "latent_attention": _attention,
    "linear": _linear,
    "linear_heads": _linear_heads,
    "rope": _rope,
    "route": _route,
}
