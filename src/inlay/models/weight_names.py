"""Under which names the weights of each architecture lie in its files. Data, and its expansion.

A row maps a part of the generic decoder to a name pattern. Adding an architecture that the
decoder can already express is a row here, one in `core/architectures.py`, and one in
`experts/modules.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import MlaShape, ModelShape

_LAYER = "model.layers.{layer}"
_ATTENTION = f"{_LAYER}.self_attn"
_MLP = f"{_LAYER}.mlp"

DECODER_NAMES: dict[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": f"{_LAYER}.input_layernorm.weight",
    "q": f"{_ATTENTION}.q_proj.weight",
    "k": f"{_ATTENTION}.k_proj.weight",
    "v": f"{_ATTENTION}.v_proj.weight",
    "output": f"{_ATTENTION}.o_proj.weight",
    "q_bias": f"{_ATTENTION}.q_proj.bias",
    "k_bias": f"{_ATTENTION}.k_proj.bias",
    "v_bias": f"{_ATTENTION}.v_proj.bias",
    "output_bias": f"{_ATTENTION}.o_proj.bias",
    "q_norm": f"{_ATTENTION}.q_norm.weight",
    "k_norm": f"{_ATTENTION}.k_norm.weight",
    "sinks": f"{_ATTENTION}.sinks",
    # Latent attention.
    "q_down": f"{_ATTENTION}.q_a_proj.weight",
    "q_down_bias": f"{_ATTENTION}.q_a_proj.bias",
    "q_latent_norm": f"{_ATTENTION}.q_a_layernorm.weight",
    "q_up": f"{_ATTENTION}.q_b_proj.weight",
    "kv_down": f"{_ATTENTION}.kv_a_proj_with_mqa.weight",
    "kv_down_bias": f"{_ATTENTION}.kv_a_proj_with_mqa.bias",
    "kv_latent_norm": f"{_ATTENTION}.kv_a_layernorm.weight",
    "kv_up": f"{_ATTENTION}.kv_b_proj.weight",
    "mlp_norm": f"{_LAYER}.post_attention_layernorm.weight",
    # Of what a part has computed, before it is added.
    "attention_post_norm": f"{_LAYER}.post_attention_layernorm.weight",
    "mlp_post_norm": f"{_LAYER}.post_feedforward_layernorm.weight",
    "gate": f"{_MLP}.gate_proj.weight",
    "up": f"{_MLP}.up_proj.weight",
    "down": f"{_MLP}.down_proj.weight",
    "gate_bias": f"{_MLP}.gate_proj.bias",
    "up_bias": f"{_MLP}.up_proj.bias",
    "down_bias": f"{_MLP}.down_proj.bias",
    "router": f"{_MLP}.gate.weight",
    "router_bias": f"{_MLP}.gate.bias",
    "correction": f"{_MLP}.gate.e_score_correction_bias",
    "shared_gate": f"{_MLP}.shared_experts.gate_proj.weight",
    "shared_up": f"{_MLP}.shared_experts.up_proj.weight",
    "shared_down": f"{_MLP}.shared_experts.down_proj.weight",
    "shared_score": f"{_MLP}.shared_expert_gate.weight",
    # One tensor per expert, as models are published,
    "expert_gate": f"{_MLP}.experts.{{expert}}.gate_proj.weight",
    "expert_up": f"{_MLP}.experts.{{expert}}.up_proj.weight",
    "expert_down": f"{_MLP}.experts.{{expert}}.down_proj.weight",
    "expert_gate_bias": f"{_MLP}.experts.{{expert}}.gate_proj.bias",
    "expert_up_bias": f"{_MLP}.experts.{{expert}}.up_proj.bias",
    "expert_down_bias": f"{_MLP}.experts.{{expert}}.down_proj.bias",
    # or one for all experts of a layer, as transformers 5 holds them: [E, 2F, M] and [E, M, F].
    "experts_gate_up": f"{_MLP}.experts.gate_up_proj",
    "experts_down": f"{_MLP}.experts.down_proj",
    "experts_gate_up_bias": f"{_MLP}.experts.gate_up_proj_bias",
    "experts_down_bias": f"{_MLP}.experts.down_proj_bias",
}


NORMS = frozenset(
    (
        "final_norm",
        "attention_norm",
        "attention_post_norm",
        "mlp_norm",
        "mlp_post_norm",
        "q_norm",
        "k_norm",
    )
)
"""Parts whose weights files may have less a number: `Architecture.norm_offset`."""


@dataclass(frozen=True)
class NameRow:
    """The names of one architecture.

    Attributes:
        names: by part of the decoder; `{layer}` and `{expert}` are numbers.
        columns_first: fused experts are [E, M, 2F] and [E, F, M], and gate and up alternate.
        stacked: what lies by rows in one tensor, whose name is in `names`, too.
        in_one_row: parts of one dimension that files have as a matrix of one row.
    """

    names: Mapping[str, str]
    columns_first: bool = False
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    in_one_row: frozenset[str] = frozenset()


_ROUTER_NAMES = {
    "router": f"{_MLP}.router.weight",
    "router_bias": f"{_MLP}.router.bias",
}

_BLOCK_SPARSE = f"{_LAYER}.block_sparse_moe"
_MIXTRAL_NAMES = {
    "router": f"{_BLOCK_SPARSE}.gate.weight",
    "expert_gate": f"{_BLOCK_SPARSE}.experts.{{expert}}.w1.weight",
    "expert_up": f"{_BLOCK_SPARSE}.experts.{{expert}}.w3.weight",
    "expert_down": f"{_BLOCK_SPARSE}.experts.{{expert}}.w2.weight",
}

_MINIMAX_NAMES = _MIXTRAL_NAMES | {
    "correction": f"{_BLOCK_SPARSE}.e_score_correction_bias",
}
_GRANITE_MOE_NAMES = {
    "router": f"{_BLOCK_SPARSE}.router.layer.weight",
    "experts_gate_up": f"{_BLOCK_SPARSE}.input_linear.weight",
    "experts_down": f"{_BLOCK_SPARSE}.output_linear.weight",
}
_GEMMA_NAMES = {"mlp_norm": f"{_LAYER}.pre_feedforward_layernorm.weight"}
_QWEN2_MOE_NAMES = {
    f"shared_{part}": f"{_MLP}.shared_expert.{part}_proj.weight" for part in ("gate", "up", "down")
}
_ERNIE_NAMES = {"correction": f"{_MLP}.moe_statics.e_score_correction_bias"}
_HUNYUAN_NAMES = {
    "q_norm": f"{_ATTENTION}.query_layernorm.weight",
    "k_norm": f"{_ATTENTION}.key_layernorm.weight",
}
_HUNYUAN_MOE_NAMES = _HUNYUAN_NAMES | {
    "router": f"{_MLP}.gate.wg.weight",
    "shared_gate": f"{_MLP}.shared_mlp.gate_proj.weight",
    "shared_up": f"{_MLP}.shared_mlp.up_proj.weight",
    "shared_down": f"{_MLP}.shared_mlp.down_proj.weight",
}
_BAILING_NAMES = {
    "embedding": "model.word_embeddings.weight",
    "qkv": f"{_LAYER}.attention.query_key_value.weight",
    "qkv_bias": f"{_LAYER}.attention.query_key_value.bias",
    "output": f"{_LAYER}.attention.dense.weight",
    "q_norm": f"{_LAYER}.attention.query_layernorm.weight",
    "k_norm": f"{_LAYER}.attention.key_layernorm.weight",
    "correction": f"{_MLP}.gate.expert_bias",
}
_PHI3_NAMES = {
    "qkv": f"{_ATTENTION}.qkv_proj.weight",
    "gate_up": f"{_MLP}.gate_up_proj.weight",
}

WEIGHT_NAMES: dict[str, NameRow] = {
    **dict.fromkeys(
        (
            "deepseek_v2",
            "deepseek_v3",
            "ernie4_5",
            "glm4_moe",
            "glm4_moe_lite",
            "granite",
            "kimi_k2",
            "llama",
            "ministral3",
            "mistral",
            "olmo2",
            "olmo3",
            "olmoe",
            "qwen2",
            "qwen3",
            "qwen3_moe",
            "seed_oss",
            "smollm3",
        ),
        NameRow(DECODER_NAMES),
    ),
    **dict.fromkeys(
        ("bailing_moe", "bailing_moe_v2"),
        NameRow(
            DECODER_NAMES | _BAILING_NAMES,
            stacked={"qkv": ("q", "k", "v"), "qkv_bias": ("q_bias", "k_bias", "v_bias")},
        ),
    ),
    **dict.fromkeys(("gemma2", "gemma3_text"), NameRow(DECODER_NAMES | _GEMMA_NAMES)),
    "ernie4_5_moe": NameRow(DECODER_NAMES | _ERNIE_NAMES, in_one_row=frozenset({"correction"})),
    "gpt_oss": NameRow(DECODER_NAMES | _ROUTER_NAMES, columns_first=True),
    "granitemoe": NameRow(DECODER_NAMES | _GRANITE_MOE_NAMES),
    "hunyuan_v1_dense": NameRow(DECODER_NAMES | _HUNYUAN_NAMES),
    "hunyuan_v1_moe": NameRow(DECODER_NAMES | _HUNYUAN_MOE_NAMES),
    "minimax_m2": NameRow(DECODER_NAMES | _MINIMAX_NAMES),
    "mixtral": NameRow(DECODER_NAMES | _MIXTRAL_NAMES),
    "phi3": NameRow(
        DECODER_NAMES | _PHI3_NAMES, stacked={"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
    ),
    "qwen2_moe": NameRow(DECODER_NAMES | _QWEN2_MOE_NAMES),
}

# Tensors that old checkpoints hold and that are computed here.
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class Expected:
    """One tensor that the files must hold."""

    name: str
    shape: tuple[int, ...]


def layer_parts(shape: ModelShape, layer: int) -> dict[str, tuple[int, ...]]:
    """Parts of one layer and their shapes, the routed experts left out."""
    hidden, width, shared = shape.hidden, shape.intermediate, shape.shared_intermediate
    before, after = shape.norms != "after", shape.norms != "before"
    parts: dict[str, tuple[int, ...]] = {"attention_norm": (hidden,)} if before else {}
    parts |= _mla_parts(shape, shape.mla) if shape.mla else _gqa_parts(shape)
    if after:
        parts["attention_post_norm"] = (hidden,)
    if before:
        parts["mlp_norm"] = (hidden,)
    if layer in shape.sparse_layers:
        parts["router"] = (shape.experts, hidden)
        if shape.router.bias:
            parts["router_bias"] = (shape.experts,)
        if shape.router.correction:
            parts["correction"] = (shape.experts,)
        if shared:
            parts |= {"shared_gate": (shared, hidden), "shared_up": (shared, hidden)}
            parts["shared_down"] = (hidden, shared)
            if shape.shared_gate:
                parts["shared_score"] = (1, hidden)
    else:
        parts |= {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        if shape.mlp_bias:
            parts |= {"gate_bias": (width,), "up_bias": (width,), "down_bias": (hidden,)}
    if after:
        parts["mlp_post_norm"] = (hidden,)
    return parts


def _gqa_parts(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    hidden = shape.hidden
    q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    parts: dict[str, tuple[int, ...]] = {
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "output": (hidden, q_rows),
    }
    if shape.qkv_bias:
        parts |= {"q_bias": (q_rows,), "k_bias": (kv_rows,), "v_bias": (kv_rows,)}
    if shape.output_bias:
        parts["output_bias"] = (hidden,)
    if shape.qk_norm:
        whole = shape.qk_norm == "whole"
        parts["q_norm"] = (q_rows if whole else shape.head_dim,)
        parts["k_norm"] = (kv_rows if whole else shape.head_dim,)
    if shape.sinks:
        parts["sinks"] = (shape.heads,)
    return parts


def _mla_parts(shape: ModelShape, mla: MlaShape) -> dict[str, tuple[int, ...]]:
    hidden, latent = shape.hidden, mla.kv_rank + mla.rope_dim
    q_rows = shape.heads * shape.head_dim
    parts: dict[str, tuple[int, ...]] = {"q": (q_rows, hidden)}
    if mla.q_rank:
        parts = {"q_down": (mla.q_rank, hidden), "q_latent_norm": (mla.q_rank,)}
        parts["q_up"] = (q_rows, mla.q_rank)
    parts |= {
        "kv_down": (latent, hidden),
        "kv_latent_norm": (mla.kv_rank,),
        "kv_up": (shape.heads * (mla.nope_dim + mla.value_dim), mla.kv_rank),
        "output": (hidden, shape.heads * mla.value_dim),
    }
    if shape.qkv_bias:
        parts["kv_down_bias"] = (latent,)
        if mla.q_rank:
            parts["q_down_bias"] = (mla.q_rank,)
    if shape.output_bias:
        parts["output_bias"] = (hidden,)
    return parts


def expected_tensors(shape: ModelShape, *, fused_experts: bool) -> Iterator[Expected]:
    """All tensors of a model, in the order in which they are used."""
    row = names_of(shape)
    names = row.names
    yield Expected(names["embedding"], (shape.vocab, shape.hidden))
    for layer in range(shape.layers):
        for part, size in layer_parts(shape, layer).items():
            stored = (1, *size) if part in row.in_one_row else size
            yield Expected(names[part].format(layer=layer), stored)
        if layer in shape.sparse_layers:
            yield from _expected_experts(shape, row, layer, fused_experts)
    yield Expected(names["final_norm"], (shape.hidden,))
    if not shape.tie_embeddings:
        yield Expected(names["head"], (shape.vocab, shape.hidden))


def stacked_rows(shape: ModelShape, layer: int) -> Iterator[tuple[str, str, slice]]:
    """What lies in one tensor with others: its name, that of the tensor, and its rows there."""
    row, sizes = names_of(shape), layer_parts(shape, layer)
    for whole, parts in row.stacked.items():
        start = 0
        for part in parts:
            rows = sizes.get(part, (0,))[0]
            name, tensor = (row.names[one].format(layer=layer) for one in (part, whole))
            if rows:
                yield name, tensor, slice(start, start + rows)
            start += rows


def _expected_experts(
    shape: ModelShape, row: NameRow, layer: int, fused: bool
) -> Iterator[Expected]:
    names, experts = row.names, shape.experts
    hidden, width = shape.hidden, shape.moe_intermediate
    if fused:
        gate_up, down = (2 * width, hidden), (hidden, width)
        if row.columns_first:
            gate_up, down = gate_up[::-1], down[::-1]
        yield Expected(names["experts_gate_up"].format(layer=layer), (experts, *gate_up))
        yield Expected(names["experts_down"].format(layer=layer), (experts, *down))
        if shape.expert_bias:
            gate_up_bias = names["experts_gate_up_bias"].format(layer=layer)
            yield Expected(gate_up_bias, (experts, 2 * width))
            yield Expected(names["experts_down_bias"].format(layer=layer), (experts, hidden))
        return
    for expert in range(experts):
        for part, size in (
            ("expert_gate", (width, hidden)),
            ("expert_up", (width, hidden)),
            ("expert_down", (hidden, width)),
        ):
            yield Expected(names[part].format(layer=layer, expert=expert), size)
            if shape.expert_bias:
                yield Expected(names[f"{part}_bias"].format(layer=layer, expert=expert), size[:1])


def names_of(shape: ModelShape) -> NameRow:
    """The row of a shape's architecture."""
    if shape.architecture not in WEIGHT_NAMES:
        raise UnsupportedModelError(
            f"weights of model_type {shape.architecture!r} have no names: add its row to "
            "inlay/models/weight_names.py"
        )
    return WEIGHT_NAMES[shape.architecture]
