"""The entries of a packed model: their names, sizes and formats, from its shape alone.

Names are the fields of `Weights` and `LayerWeights`, `layers.<n>.` before the latter; a bias is
`<entry>.bias`. Who writes such a file and who reads it go by the same list. Knows no files.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from inlay import kernels
from inlay.core.model_shape import MlaShape, ModelShape
from inlay.models.formats import PartFormats


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """The embedding: `rows` of `columns`, as the files have them or in float32."""

    rows: int
    columns: int


@dataclass(frozen=True, kw_only=True)
class VectorEntry:
    """One dimension, in float32."""

    layer: int
    part: str
    size: int


@dataclass(frozen=True, kw_only=True)
class LinearEntry:
    """A matrix.

    Attributes:
        parts: what is stacked in it, by `weight_names`.
        bias: it has one.
    """

    layer: int
    parts: tuple[str, ...]
    rows: int
    columns: int
    format: str
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class HeadsEntry:
    """A matrix for each head, of `absorb` or `expand`; `rows` are those of all with what is
    between them.
    """

    layer: int
    part: str
    rows: int
    columns: int
    format: str


@dataclass(frozen=True, kw_only=True)
class ExpertsEntry:
    """The experts of a layer that are routed to, or the shared ones as one expert."""

    layer: int
    count: int
    hidden: int
    width: int
    format: str
    biases: bool = False
    shared: bool = False


Entry = TableEntry | VectorEntry | LinearEntry | HeadsEntry | ExpertsEntry


def packed_entries(shape: ModelShape, formats: PartFormats) -> dict[str, Entry]:
    """All of a model, in the order of their use."""
    hidden = shape.hidden
    entries: dict[str, Entry] = {"embedding_VM": TableEntry(rows=shape.vocab, columns=hidden)}
    for layer in range(shape.layers):
        mlp = _mixture if layer in shape.sparse_layers else _dense
        attention = (
            _mla(shape, shape.mla, formats, layer) if shape.mla else _gqa(shape, formats, layer)
        )
        before, after = shape.norms != "after", shape.norms != "before"
        named: tuple[tuple[str, Entry], ...] = (
            *_norm("attention_norm", shape, layer, before),
            *((f"attention.{name}", entry) for name, entry in attention),
            *_norm("attention_post_norm", shape, layer, after),
            *_norm("mlp_norm", shape, layer, before),
            *((f"mlp.{name}", entry) for name, entry in mlp(shape, formats, layer)),
            *_norm("mlp_post_norm", shape, layer, after),
        )
        entries |= {f"layers.{layer}.{name}": entry for name, entry in named}
    entries["final_norm_M"] = VectorEntry(layer=0, part="final_norm", size=hidden)
    entries["head"] = LinearEntry(
        layer=0,
        parts=("embedding" if shape.tie_embeddings else "head",),
        rows=shape.vocab,
        columns=hidden,
        format=formats.head,
    )
    return entries


def _norm(part: str, shape: ModelShape, layer: int, there: bool) -> Iterator[tuple[str, Entry]]:
    if there:
        yield f"{part}_M", VectorEntry(layer=layer, part=part, size=shape.hidden)


def _gqa(shape: ModelShape, formats: PartFormats, layer: int) -> Iterator[tuple[str, Entry]]:
    q_width = shape.heads * shape.head_dim
    yield (
        "qkv",
        LinearEntry(
            layer=layer,
            parts=("q", "k", "v"),
            rows=q_width + 2 * shape.kv_heads * shape.head_dim,
            columns=shape.hidden,
            format=formats.attention,
            bias=shape.qkv_bias,
        ),
    )
    yield "output", _output(shape, formats, layer, q_width)
    if shape.qk_norm:
        for part, heads in (("q_norm", shape.heads), ("k_norm", shape.kv_heads)):
            size = shape.head_dim * (heads if shape.qk_norm == "whole" else 1)
            yield f"{part}_D", VectorEntry(layer=layer, part=part, size=size)
    if shape.sinks:
        yield "sinks_H", VectorEntry(layer=layer, part="sinks", size=shape.heads)


def _output(shape: ModelShape, formats: PartFormats, layer: int, columns: int) -> LinearEntry:
    return LinearEntry(
        layer=layer,
        parts=("output",),
        rows=shape.hidden,
        columns=columns,
        format=formats.attention,
        bias=shape.output_bias,
    )


def _mla(
    shape: ModelShape, mla: MlaShape, formats: PartFormats, layer: int
) -> Iterator[tuple[str, Entry]]:
    q_width, q_rank = shape.heads * shape.head_dim, mla.q_rank
    yield (
        "down",
        LinearEntry(
            layer=layer,
            parts=("q_down" if q_rank else "q", "kv_down"),
            rows=(q_rank or q_width) + mla.kv_rank + mla.rope_dim,
            columns=shape.hidden,
            format=formats.attention,
            bias=shape.qkv_bias,
        ),
    )
    if q_rank:
        yield "q_latent_norm_L", VectorEntry(layer=layer, part="q_latent_norm", size=q_rank)
        yield (
            "q_up",
            LinearEntry(
                layer=layer,
                parts=("q_up",),
                rows=q_width,
                columns=q_rank,
                format=formats.attention,
            ),
        )
    yield "kv_latent_norm_L", VectorEntry(layer=layer, part="kv_latent_norm", size=mla.kv_rank)
    for part, rows, columns in (
        ("absorb", mla.kv_rank, mla.nope_dim),
        ("expand", mla.value_dim, mla.kv_rank),
    ):
        yield (
            part,
            HeadsEntry(
                layer=layer,
                part=part,
                rows=shape.heads * kernels.head_rows(rows),
                columns=columns,
                format=formats.latent,
            ),
        )
    yield "output", _output(shape, formats, layer, shape.heads * mla.value_dim)


def _dense(shape: ModelShape, formats: PartFormats, layer: int) -> Iterator[tuple[str, Entry]]:
    hidden, width = shape.hidden, shape.intermediate
    for name, parts, rows, columns in (
        ("gate_up", ("gate", "up"), 2 * width, hidden),
        ("down", ("down",), hidden, width),
    ):
        yield (
            name,
            LinearEntry(
                layer=layer,
                parts=parts,
                rows=rows,
                columns=columns,
                format=formats.mlp,
                bias=shape.mlp_bias,
            ),
        )


def _mixture(shape: ModelShape, formats: PartFormats, layer: int) -> Iterator[tuple[str, Entry]]:
    hidden, shared = shape.hidden, shape.shared_intermediate
    yield (
        "router",
        LinearEntry(
            layer=layer,
            parts=("router",),
            rows=shape.experts,
            columns=hidden,
            format=formats.router,
            bias=shape.router.bias,
        ),
    )
    if shape.router.correction:
        yield "correction_E", VectorEntry(layer=layer, part="correction", size=shape.experts)
    yield (
        "experts",
        ExpertsEntry(
            layer=layer,
            count=shape.experts,
            hidden=hidden,
            width=shape.moe_intermediate,
            format=formats.experts,
            biases=shape.expert_bias,
        ),
    )
    if shared:
        yield (
            "shared",
            ExpertsEntry(
                layer=layer, count=1, hidden=hidden, width=shared, format=formats.mlp, shared=True
            ),
        )
        if shape.shared_gate:
            yield (
                "shared_score",
                LinearEntry(
                    layer=layer,
                    parts=("shared_score",),
                    rows=1,
                    columns=hidden,
                    format=formats.router,
                ),
            )
