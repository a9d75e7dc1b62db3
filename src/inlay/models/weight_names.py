"""Under which names the weights of each architecture lie in its files. Data, and its expansion.

A row maps a part of the generic decoder to a name pattern. Adding an architecture that the
decoder can already express is a row here and one in `core/architectures.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import ModelShape

_LAYER = "model.layers.{layer}"

DECODER_NAMES: dict[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": f"{_LAYER}.input_layernorm.weight",
    "q": f"{_LAYER}.self_attn.q_proj.weight",
    "k": f"{_LAYER}.self_attn.k_proj.weight",
    "v": f"{_LAYER}.self_attn.v_proj.weight",
    "output": f"{_LAYER}.self_attn.o_proj.weight",
    "q_bias": f"{_LAYER}.self_attn.q_proj.bias",
    "k_bias": f"{_LAYER}.self_attn.k_proj.bias",
    "v_bias": f"{_LAYER}.self_attn.v_proj.bias",
    "output_bias": f"{_LAYER}.self_attn.o_proj.bias",
    "q_norm": f"{_LAYER}.self_attn.q_norm.weight",
    "k_norm": f"{_LAYER}.self_attn.k_norm.weight",
    "mlp_norm": f"{_LAYER}.post_attention_layernorm.weight",
    "gate": f"{_LAYER}.mlp.gate_proj.weight",
    "up": f"{_LAYER}.mlp.up_proj.weight",
    "down": f"{_LAYER}.mlp.down_proj.weight",
    "gate_bias": f"{_LAYER}.mlp.gate_proj.bias",
    "up_bias": f"{_LAYER}.mlp.up_proj.bias",
    "down_bias": f"{_LAYER}.mlp.down_proj.bias",
    "router": f"{_LAYER}.mlp.gate.weight",
    # One tensor per expert, as models are published,
    "expert_gate": f"{_LAYER}.mlp.experts.{{expert}}.gate_proj.weight",
    "expert_up": f"{_LAYER}.mlp.experts.{{expert}}.up_proj.weight",
    "expert_down": f"{_LAYER}.mlp.experts.{{expert}}.down_proj.weight",
    # or one for all experts of a layer, as transformers 5 holds them: [E, 2F, M] and [E, M, F].
    "experts_gate_up": f"{_LAYER}.mlp.experts.gate_up_proj",
    "experts_down": f"{_LAYER}.mlp.experts.down_proj",
}

WEIGHT_NAMES: dict[str, Mapping[str, str]] = dict.fromkeys(
    ("llama", "mistral", "qwen3", "qwen3_moe"), DECODER_NAMES
)


def require_loadable(shape: ModelShape) -> None:
    """Raise UnsupportedModelError where config.json is understood, and the decoder lacks parts."""
    if shape.architecture not in WEIGHT_NAMES:
        raise UnsupportedModelError(
            f"config.json: models of model_type {shape.architecture!r} cannot be loaded yet; those "
            f"of {', '.join(sorted(WEIGHT_NAMES))} can"
        )


# Tensors that old checkpoints hold and that are computed here.
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class Expected:
    """One tensor that the files must hold."""

    name: str
    shape: tuple[int, ...]


def layer_parts(shape: ModelShape, layer: int) -> dict[str, tuple[int, ...]]:
    """Parts of one layer and their shapes, the routed experts left out."""
    hidden, width = shape.hidden, shape.intermediate
    q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    parts: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "output": (hidden, q_rows),
        "mlp_norm": (hidden,),
    }
    if shape.qkv_bias:
        parts |= {"q_bias": (q_rows,), "k_bias": (kv_rows,), "v_bias": (kv_rows,)}
    if shape.output_bias:
        parts["output_bias"] = (hidden,)
    if shape.qk_norm:
        parts |= {"q_norm": (shape.head_dim,), "k_norm": (shape.head_dim,)}
    if layer in shape.sparse_layers:
        parts["router"] = (shape.experts, hidden)
        return parts
    parts |= {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    if shape.mlp_bias:
        parts |= {"gate_bias": (width,), "up_bias": (width,), "down_bias": (hidden,)}
    return parts


def expected_tensors(shape: ModelShape, *, fused_experts: bool) -> Iterator[Expected]:
    """All tensors of a model, in the order in which they are used."""
    names = WEIGHT_NAMES[shape.architecture]
    yield Expected(names["embedding"], (shape.vocab, shape.hidden))
    for layer in range(shape.layers):
        for part, size in layer_parts(shape, layer).items():
            yield Expected(names[part].format(layer=layer), size)
        if layer in shape.sparse_layers:
            yield from _expected_experts(shape, names, layer, fused_experts)
    yield Expected(names["final_norm"], (shape.hidden,))
    if not shape.tie_embeddings:
        yield Expected(names["head"], (shape.vocab, shape.hidden))


def _expected_experts(
    shape: ModelShape, names: Mapping[str, str], layer: int, fused: bool
) -> Iterator[Expected]:
    hidden, width, experts = shape.hidden, shape.moe_intermediate, shape.experts
    if fused:
        gate_up = names["experts_gate_up"].format(layer=layer)
        yield Expected(gate_up, (experts, 2 * width, hidden))
        yield Expected(names["experts_down"].format(layer=layer), (experts, hidden, width))
        return
    for expert in range(experts):
        for part, size in (
            ("expert_gate", (width, hidden)),
            ("expert_up", (width, hidden)),
            ("expert_down", (hidden, width)),
        ):
            yield Expected(names[part].format(layer=layer, expert=expert), size)
