"""The modules of a model as Hugging Face's code names them, which placement rules match.

modules_of(shape)    `model`, `model.embed_tokens`, `model.layers.0.self_attn.q_proj`, ...

Names and classes are those of transformers 5; where older code, or KTransformers' own, has other
ones, they are matched, too. The routed experts of a layer are one module. Nothing here runs: Inlay
has one decoder for all architectures, and its own parts in place of these.

Cost: about 20 modules per layer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import ModelShape

Family = Literal[
    "model", "layer", "embedding", "attention", "linear", "norm", "rope", "mlp", "mixture",
    "router", "experts", "head",
]  # fmt: skip
"""What a module is: `mixture` is a layer's MLP that has a router and experts; `linear` is any
matrix but the router's and the output matrix, `head`."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """One module.

    Attributes:
        name: its dotted path.
        other_names: under which other code has it.
        classes: the last parts of their import paths.
        layer: None outside of the layers.
    """

    name: str
    other_names: tuple[str, ...] = ()
    family: Family
    classes: tuple[str, ...]
    layer: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All that it has."""
        return (self.name, *self.other_names)


@dataclass(frozen=True, kw_only=True)
class _Classes:
    """How an architecture's code calls what is not called alike everywhere.

    Attributes:
        prefix: of most class names.
        mixture: classes of a mixture; the first is that of transformers 5, as below.
        router: what the router is.
        router_name: its name in the mixture.
        rope: further classes of the rotation.
        mlp_name: of MLPs in other code.
        mixture_name: of a mixture in the layer.
        shared_name: of what all tokens pass.
        shared_score: of what gives its score, where it has one.
        stacked: what is one module: `qkv`, and `gate_up`.
        embedding_name: of the embedding in the model.
        attention_name: of the attention in the layer.
        attention_parts: names of its modules, where they are not those of most.
        embedding, model: classes of those two.
    """

    prefix: str
    mixture: tuple[str, ...] = ()
    router: tuple[str, ...] = ()
    router_name: str = "gate"
    rope: tuple[str, ...] = ()
    mlp_name: str = ""
    mixture_name: str = "mlp"
    shared_name: str = "shared_experts"
    shared_score: str = ""
    stacked: tuple[str, ...] = ()
    embedding_name: str = "embed_tokens"
    attention_name: str = "self_attn"
    attention_parts: Mapping[str, str] = field(default_factory=dict)
    embedding: str = "Embedding"
    model: str = ""


_DEEPSEEK_V3 = _Classes(
    prefix="DeepseekV3",
    mixture=("DeepseekV3MoE",),
    router=("DeepseekV3TopkRouter", "MoEGate"),
    rope=("DeepseekV3YarnRotaryEmbedding",),
)

_LONG_NORMS = {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}
_BAILING: dict[str, Any] = {
    "stacked": ("qkv",),
    "embedding_name": "word_embeddings",
    "attention_name": "attention",
    "attention_parts": {"qkv_proj": "query_key_value", "o_proj": "dense", **_LONG_NORMS},
}

# By `model_type`, as in core/architectures.py.
_CLASSES = {
    "bailing_moe": _Classes(
        prefix="BailingMoe",
        mixture=("BailingMoeSparseMoeBlock",),
        router=("BailingMoeGate",),
        **_BAILING,
    ),
    "bailing_moe_v2": _Classes(
        prefix="BailingMoeV2",
        mixture=("BailingMoeV2SparseMoeBlock",),
        router=("BailingMoeV2Gate",),
        **_BAILING,
    ),
    "deepseek_v2": _Classes(
        prefix="DeepseekV2",
        mixture=("DeepseekV2Moe", "DeepseekV2MoE"),
        router=("DeepseekV2TopkRouter", "MoEGate"),
        rope=("DeepseekV2YarnRotaryEmbedding",),
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "ernie4_5": _Classes(prefix="Ernie4_5"),
    "ernie4_5_moe": _Classes(
        prefix="Ernie4_5_Moe",
        mixture=("Ernie4_5_MoeSparseMoeBlock",),
        router=("Ernie4_5_MoeTopKRouter",),
    ),
    "gemma2": _Classes(prefix="Gemma2", embedding="Gemma2TextScaledWordEmbedding"),
    "gemma3_text": _Classes(
        prefix="Gemma3", embedding="Gemma3TextScaledWordEmbedding", model="Gemma3TextModel"
    ),
    "glm4_moe": _Classes(prefix="Glm4Moe", mixture=("Glm4MoeMoE",), router=("Glm4MoeTopkRouter",)),
    "glm4_moe_lite": _Classes(
        prefix="Glm4MoeLite", mixture=("Glm4MoeLiteMoE",), router=("Glm4MoeLiteTopkRouter",)
    ),
    "gpt_oss": _Classes(
        prefix="GptOss",
        mixture=("GptOssMLP",),
        router=("GptOssTopKRouter",),
        router_name="router",
    ),
    "granite": _Classes(prefix="Granite"),
    "granitemoe": _Classes(
        prefix="GraniteMoe",
        mixture=("GraniteMoeMoE",),
        mixture_name="block_sparse_moe",
        router=("GraniteMoeTopKRouter",),
        router_name="router",
    ),
    "hunyuan_v1_dense": _Classes(prefix="HunYuanDenseV1", attention_parts=_LONG_NORMS),
    "hunyuan_v1_moe": _Classes(
        prefix="HunYuanMoEV1",
        mixture=("HunYuanMoEV1Moe",),
        router=("HunYuanMoEV1Gate",),
        shared_name="shared_mlp",
        attention_parts=_LONG_NORMS,
    ),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": _Classes(prefix="Llama"),
    "minimax_m2": _Classes(
        prefix="MiniMaxM2",
        mixture=("MiniMaxM2SparseMoeBlock",),
        router=("MiniMaxM2TopKRouter",),
        mlp_name="block_sparse_moe",
    ),
    "ministral3": _Classes(prefix="Ministral3"),
    "mistral": _Classes(prefix="Mistral"),
    "mixtral": _Classes(
        prefix="Mixtral",
        mixture=("MixtralSparseMoeBlock",),
        router=("MixtralTopKRouter", "Linear"),
        mlp_name="block_sparse_moe",
    ),
    "olmo2": _Classes(prefix="Olmo2"),
    "olmo3": _Classes(prefix="Olmo3"),
    "olmoe": _Classes(
        prefix="Olmoe", mixture=("OlmoeSparseMoeBlock",), router=("OlmoeTopKRouter", "Linear")
    ),
    "phi3": _Classes(prefix="Phi3", stacked=("qkv", "gate_up")),
    "qwen2": _Classes(prefix="Qwen2"),
    "qwen2_moe": _Classes(
        prefix="Qwen2Moe",
        mixture=("Qwen2MoeSparseMoeBlock",),
        router=("Qwen2MoeTopKRouter", "Linear"),
        shared_name="shared_expert",
        shared_score="shared_expert_gate",
    ),
    "qwen3": _Classes(prefix="Qwen3"),
    "qwen3_moe": _Classes(
        prefix="Qwen3Moe",
        mixture=("Qwen3MoeSparseMoeBlock",),
        router=("Qwen3MoeTopKRouter", "Linear"),
        rope=("Qwen2MoeRotaryEmbedding",),
    ),
    "seed_oss": _Classes(prefix="SeedOss"),
    "smollm3": _Classes(prefix="SmolLM3"),
}

_LAYER_NORMS = {
    "before": ("input_layernorm", "post_attention_layernorm"),
    "after": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "around": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}


def modules_of(shape: ModelShape) -> tuple[Module, ...]:
    """All modules, each before those below it, in the order in which a token passes them.

    Raises:
        UnsupportedModelError: nobody has written down the names of this architecture.
    """
    if shape.architecture not in _CLASSES:
        raise UnsupportedModelError(
            f"modules of model_type {shape.architecture!r} have no names: add its row to "
            "inlay/experts/modules.py"
        )
    return tuple(_walk(shape, _CLASSES[shape.architecture]))


def absent_classes(shape: ModelShape) -> frozenset[str]:
    """Classes that the architecture has and this model not: of dense layers, or of mixtures."""
    own = _CLASSES[shape.architecture]
    rows = (row for sparse in (False, True) for row in _mlp(shape, own, sparse=sparse))
    classes = {name for _, _, _, names in rows for name in names}
    return frozenset(classes.difference(*(module.classes for module in modules_of(shape))))


def _walk(shape: ModelShape, own: _Classes) -> Iterator[Module]:
    prefix = own.prefix
    rope = (f"{prefix}RotaryEmbedding", *own.rope)
    yield Module(name="model", family="model", classes=(own.model or f"{prefix}Model",))
    yield Module(name=f"model.{own.embedding_name}", family="embedding", classes=(own.embedding,))
    yield Module(name="model.layers", family="model", classes=("ModuleList",))
    for layer in range(shape.layers):
        for name, other_names, family, classes in _layer(shape, own, rope, layer):
            path = f"model.layers.{layer}"
            yield Module(
                name=f"{path}{name}",
                other_names=tuple(f"{path}{other}" for other in other_names),
                family=family,
                classes=classes,
                layer=layer,
            )
    yield Module(name="model.norm", family="norm", classes=(f"{prefix}RMSNorm",))
    yield Module(name="model.rotary_emb", family="rope", classes=rope)
    yield Module(name="lm_head", family="head", classes=("Linear",))


_Row = tuple[str, tuple[str, ...], Family, tuple[str, ...]]
"""Name below the layer, other names, family, classes."""


def _layer(shape: ModelShape, own: _Classes, rope: tuple[str, ...], layer: int) -> Iterator[_Row]:
    prefix, norm = own.prefix, (f"{own.prefix}RMSNorm",)
    yield "", (), "layer", (f"{prefix}DecoderLayer",)
    attention = f".{own.attention_name}"
    yield attention, (), "attention", (f"{prefix}Attention",)
    for name in _attention(shape, own):
        is_norm = name.endswith("norm")
        classes = norm if is_norm else ("Linear",)
        yield f"{attention}.{name}", (), "norm" if is_norm else "linear", classes
    yield f"{attention}.rotary_emb", (), "rope", rope
    yield from _mlp(shape, own, sparse=layer in shape.sparse_layers)
    for name in _LAYER_NORMS[shape.norms]:
        yield f".{name}", (), "norm", norm


def _attention(shape: ModelShape, own: _Classes) -> tuple[str, ...]:
    if shape.mla is None:
        norms = ("q_norm", "k_norm") if shape.qk_norm else ()
        inputs = ("qkv_proj",) if "qkv" in own.stacked else ("q_proj", "k_proj", "v_proj")
        parts = (*inputs, "o_proj", *norms)
        return tuple(own.attention_parts.get(part, part) for part in parts)
    queries = ("q_a_proj", "q_a_layernorm", "q_b_proj") if shape.mla.q_rank else ("q_proj",)
    return (*queries, "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")


def _mlp(shape: ModelShape, own: _Classes, *, sparse: bool) -> Iterator[_Row]:
    mlp = (f"{own.prefix}MLP",)
    inputs = ("gate_up_proj",) if "gate_up" in own.stacked else ("gate_proj", "up_proj")
    matrices = (*inputs, "down_proj")
    place = own.mixture_name if sparse else "mlp"

    def row(name: str, family: Family, classes: tuple[str, ...]) -> _Row:
        others = (f".{own.mlp_name}{name}",) if own.mlp_name else ()
        return f".{place}{name}", others, family, classes

    if not sparse:
        yield row("", "mlp", mlp)
        for matrix in matrices:
            yield row(f".{matrix}", "linear", ("Linear",))
        return
    yield row("", "mixture", own.mixture)
    yield row(f".{own.router_name}", "router", own.router)
    yield row(".experts", "experts", (f"{own.prefix}Experts", "ModuleList"))
    if shape.shared_intermediate:
        yield row(f".{own.shared_name}", "mlp", mlp)
        for matrix in matrices:
            yield row(f".{own.shared_name}.{matrix}", "linear", ("Linear",))
    if own.shared_score:
        yield row(f".{own.shared_score}", "linear", ("Linear",))
