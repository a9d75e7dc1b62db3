"""An adapter as the decoder adds it: beside each of its matrices what a pair of low rank adds.

What is one matrix in the decoder may be several modules in files (`qkv`), each with a pair; in
latent attention it is the other way round, and one pair becomes one for each head. Shapes: r rank,
N rows, M columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inlay.core.errors import ModelFileError
from inlay.core.model_shape import MlaShape, ModelShape
from inlay.core.tensor_parallel import shape_of_rank
from inlay.models.adapter import Adapter, AdapterPair
from inlay.models.batch import AdapterRows
from inlay.models.float_arrays import to_float32
from inlay.models.host_share import HostShare
from inlay.models.ops import AdapterPart, ExpertAdapter, ExpertPairs, HostArray, LinearAdapter, Ops
from inlay.models.placed import Placed
from inlay.models.rank_slices import RankSlices
from inlay.models.targets import targets_of
from inlay.models.tensor_weights import rows_order
from inlay.models.weight_names import names_of

QKV, OUTPUT = "qkv", "output"
LATENT_DOWN, QUERY_UP, ABSORB, EXPAND = "latent_down", "query_up", "absorb", "expand"
GATE_UP, DOWN = "gate_up", "down"

Find = Callable[[str], AdapterPair | None]


@dataclass(frozen=True)
class LayerAdapter:
    """What an adapter adds in one layer.

    Attributes:
        linear: by the decoder's matrix, one of the names above.
        experts: to routed experts where the layer is; None: nothing.
        shared: to shared ones; None: nothing.
        host_experts: to routed experts that the host computes for the layer's device, or defers;
            None: nothing.
    """

    linear: Mapping[str, LinearAdapter]
    experts: ExpertAdapter | None
    shared: ExpertAdapter | None
    host_experts: ExpertAdapter | None


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter in memory, or a rank's part of one.

    Attributes:
        fingerprint: of its content.
        nbytes: that it takes.
        number: by which the ranks that share a model know it; 0: there are no others.
    """

    layers: tuple[LayerAdapter, ...]
    fingerprint: str
    nbytes: int
    number: int = 0


class LayerRows(NamedTuple):
    """The same in one layer."""

    adapter: LayerAdapter
    first: int
    end: int


def rows_of_layer(rows: Sequence[AdapterRows], layer: int) -> Sequence[LayerRows]:
    """What adapters add in a layer."""
    return [LayerRows(of.adapter.layers[layer], of.first, of.end) for of in rows]


def pack_adapter(
    adapter: Adapter, shape: ModelShape, placed: Placed, share: HostShare | None = None
) -> AdapterWeights:
    """Bring an adapter to where the layers are.

    Args:
        shape: of the whole model; of several ranks each has its part of the pairs.
        share: what the host computes for devices. What host and device may both compute of a layer
            has its pairs in both memories, since experts move.

    Raises:
        ModelFileError: a matrix holds a NaN or an infinity.
        torch.OutOfMemoryError: a device has too little memory.

    Cost: reads the files. CPU kernels hold bfloat16 files in their size, and others as float32;
        PyTorch holds all as float32, and on a GPU with Triton as bfloat16 for experts.
    """
    slices = RankSlices(shape, placed.rank, columns_first=names_of(shape).columns_first)
    whole: dict[tuple[int, str, int], AdapterPair] = {}
    for target in targets_of(shape):
        for expert, module in enumerate(target.modules):
            if module in adapter.pairs:
                pair = _finite(module, adapter.pairs[module])
                whole[target.layer, target.part, expert] = pair
    pairs = {place: slices.pair(place[1], pair) for place, pair in whole.items()}
    own = shape_of_rank(shape, placed.rank.degree)
    layers = []
    for layer in range(shape.layers):
        ops = placed.ops(layer)

        def find(part: str, layer: int = layer) -> AdapterPair | None:
            return pairs.get((layer, part, 0))

        linear = {
            name: ops.linear_adapter(parts) for name, parts in _linear_parts(own, find) if parts
        }
        shared = _expert_pairs(1, "shared_", layer, pairs)
        experts, host_experts = _routed(layer, shape, placed, share, whole, pairs)
        layers.append(
            LayerAdapter(
                linear,
                experts,
                _experts(ops, shared, 1, own.hidden, own.shared_intermediate),
                host_experts,
            )
        )
    held = [
        part
        for layer in layers
        for part in (*layer.linear.values(), layer.experts, layer.shared, layer.host_experts)
    ]
    nbytes = sum(part.nbytes for part in held if part is not None)
    return AdapterWeights(tuple(layers), adapter.fingerprint, nbytes)


def _routed(
    layer: int,
    shape: ModelShape,
    placed: Placed,
    share: HostShare | None,
    whole: Mapping[tuple[int, str, int], AdapterPair],
    pairs: Mapping[tuple[int, str, int], AdapterPair],
) -> tuple[ExpertAdapter | None, ExpertAdapter | None]:
    """What is added to a layer's routed experts, on its device and by the host. `whole`, `pairs`:
    of all ranks, and of this one.
    """
    if layer not in shape.sparse_layers:
        return None, None
    ops, own = placed.ops(layer), shape_of_rank(shape, placed.rank.degree)
    mixture = shape.sparse_layers.index(layer)
    shares = share is not None and share.has(mixture)
    there = not shares
    if placed.has_host_experts(layer, shape):
        streams = share is not None and shares and share.may_stream(mixture)
        there = placed.placement.layers[layer].resident > 0 or streams
    here = _expert_pairs(shape.experts, "expert_", layer, pairs)
    sizes = shape.experts, own.hidden, own.moe_intermediate
    experts = _experts(ops, here, *sizes) if there else None
    if not shares:
        return experts, None
    if placed.has_host_experts(layer, shape):  # which are whole, for all ranks
        here = _expert_pairs(shape.experts, "expert_", layer, whole)
        sizes = shape.experts, shape.hidden, shape.moe_intermediate
    assert placed.host is not None
    return experts, _experts(placed.host, here, *sizes)


def _finite(module: str, pair: AdapterPair) -> AdapterPair:
    if not (np.isfinite(pair.a).all() and np.isfinite(pair.b).all()):
        raise ModelFileError(f"{module} has a NaN or an infinity in its adapter: train it again")
    return pair


def _linear_parts(shape: ModelShape, find: Find) -> Iterator[tuple[str, list[AdapterPart]]]:
    if shape.mla:
        yield from _latent_parts(shape, shape.mla, find)
    else:
        q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        yield QKV, _stacked(shape, find, {"q": 0, "k": q_rows, "v": q_rows + kv_rows})
    yield OUTPUT, _stacked(shape, find, {"output": 0})
    yield GATE_UP, _stacked(shape, find, {"gate": 0, "up": shape.intermediate})
    yield DOWN, _stacked(shape, find, {"down": 0})


def _latent_parts(
    shape: ModelShape, mla: MlaShape, find: Find
) -> Iterator[tuple[str, list[AdapterPart]]]:
    q_rows = mla.q_rank or shape.heads * shape.head_dim
    yield LATENT_DOWN, _stacked(shape, find, {"q": 0, "q_down": 0, "kv_down": q_rows})
    yield QUERY_UP, _stacked(shape, find, {"q_up": 0})
    pair = find("kv_up")
    if pair is None:
        yield from ((ABSORB, []), (EXPAND, []))
        return
    # The rows of a head are those of its keys, then those of its values. Keys are never made: a
    # query q meets latents as W^T q, so the pair is transposed.
    a_rM, a_Mr = _floats(pair.a), _floats(pair.a.T)
    heads = pair.b.reshape(shape.heads, mla.nope_dim + mla.value_dim, -1)
    yield (
        ABSORB,
        [
            AdapterPart(h * shape.head_dim, h * shape.kv_width, _floats(b.T), a_Mr, pair.scale)
            for h, b in enumerate(heads[:, : mla.nope_dim])
        ],
    )
    yield (
        EXPAND,
        [
            AdapterPart(h * mla.kv_rank, h * mla.value_dim, a_rM, _floats(b), pair.scale)
            for h, b in enumerate(heads[:, mla.nope_dim :])
        ],
    )


def _stacked(shape: ModelShape, find: Find, rows: Mapping[str, int]) -> list[AdapterPart]:
    """Pairs of modules whose rows begin there in one matrix."""
    parts = []
    for part, row in rows.items():
        pair = find(part)
        if pair is not None:
            b_Nr = pair.b[rows_order(shape, part, len(pair.b))]
            parts.append(AdapterPart(0, row, _floats(pair.a), _floats(b_Nr), pair.scale))
    return parts


def _expert_pairs(
    experts: int, prefix: str, layer: int, pairs: Mapping[tuple[int, str, int], AdapterPair]
) -> ExpertPairs:
    found: ExpertPairs = {}
    for matrix in ("gate", "up", "down"):
        for expert in range(experts):
            pair = pairs.get((layer, prefix + matrix, expert))
            if pair is not None:
                found[expert, matrix] = (_floats(pair.a), _floats(pair.b), pair.scale)
    return found


def _experts(
    ops: Ops, pairs: ExpertPairs, experts: int, hidden: int, width: int
) -> ExpertAdapter | None:
    return ops.expert_adapter(experts, hidden, width, pairs) if pairs else None


def _floats(matrix: HostArray) -> HostArray:
    return np.ascontiguousarray(to_float32(matrix))
