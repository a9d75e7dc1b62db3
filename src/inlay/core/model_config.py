"""Reading config.json into a `ModelShape`: every value checked, with what to do in the message.

shape = read_shape(directory)
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inlay.core.architectures import ARCHITECTURES, TEXT_PARTS, Architecture, ExpertRow
from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.core.model_shape import (
    Activation,
    MlaShape,
    ModelShape,
    RopeShape,
    RouterShape,
)
from inlay.core.published.read import read_quantization
from inlay.core.text_files import read_json_object

# More than any model has; lists of a damaged file's numbers would fill the memory.
_MAX_LAYERS, _MAX_EXPERTS = 10_000, 65_536

# Other spellings of a key, tried in this order (transformers 4 and 5, older publishers).
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "dtype": ("dtype", "torch_dtype"),
}
# Keys of which some makers give a number for each layer, all alike.
_BY_LAYER = ("num_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size")
# By what it is in `Activation`, what config.json calls it.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "silu": ("silu", "swish"),
    "clamped_swiglu": ("silu", "swish"),
    "gelu_tanh": ("gelu_pytorch_tanh",),
}
# Keys that a model with a text part may have beside it and mean it, too.
_OF_BOTH = ("quantization_config", "dtype", "torch_dtype", "tie_word_embeddings")


def read_shape(directory: Path) -> ModelShape:
    """The shape that `directory/config.json` gives.

    Raises:
        ModelNotFoundError: no such directory or no config.json in it.
        ModelFileError: not JSON, or a value is missing or impossible.
        UnsupportedModelError: the architecture or an option is not supported.
    """
    return shape_of(read_config(directory))


QUANTIZATION_FILE = "hf_quant_config.json"
"""What ModelOpt writes of its weights; older versions write it here alone."""


def read_config(directory: Path) -> dict[str, Any]:
    """The content of config.json, and what `QUANTIZATION_FILE` says where it says nothing of that.

    Raises:
        ModelNotFoundError: no such directory, no config.json in it, or it cannot be read.
        ModelFileError: not a JSON object.
    """
    file = directory / "config.json"
    try:
        if not directory.is_dir():
            raise ModelNotFoundError(
                f"there is no model directory {directory}: give the path of a directory with "
                "config.json, or a hub name such as Qwen/Qwen3-0.6B"
            )
        if not file.is_file():
            raise ModelNotFoundError(
                f"{directory} has no config.json, so it is not a Hugging Face model directory: "
                "name the directory that holds config.json, tokenizer.json and *.safetensors"
            )
        config = read_json_object(file)
        beside = directory / QUANTIZATION_FILE
        if "quantization_config" not in config and beside.is_file():
            config["quantization_config"] = {"quant_method": "modelopt"} | read_json_object(beside)
        return config
    except OSError as error:
        raise ModelNotFoundError(f"{file} cannot be read ({error.strerror})") from error


class _Reader:
    """Typed access to the keys of a config, with one message per kind of mistake."""

    def __init__(
        self,
        config: Mapping[str, Any],
        defaults: Mapping[str, Any],
        name: str,
        spellings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._config, self._defaults, self._name = config, defaults, name
        self._spellings = spellings

    def raw(self, key: str, default: Any = None) -> Any:
        for spelling in (*_SPELLINGS.get(key, (key,)), self._spellings.get(key, key)):
            if self._config.get(spelling) is not None:
                return self._config[spelling]
        return self._defaults.get(key, default)

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1
    ) -> int:
        value = self.raw(key, default)
        if isinstance(value, list) and value and key in _BY_LAYER:
            if any(one != value[0] for one in value):
                raise UnsupportedModelError(
                    f"{self._name}: {self._spellings.get(key, key)} is {value[0]} in some layers "
                    "and not in others, which is not supported"
                )
            value = value[0]
        if value is None:
            raise ModelFileError(f"{self._name} lacks {key!r}: download it again")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ModelFileError(
                f"{self._name}: {key} is {value!r}, not a whole number in {least}..{most}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw(key, default)
        if value is None:
            raise ModelFileError(f"{self._name} lacks {key!r}: download it again")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
            raise ModelFileError(f"{self._name}: {key} is {value!r}, not a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise ModelFileError(f"{self._name}: {key} is {value!r}, not true or false")
        return value


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape that the content of a config.json gives. Raises as `read_shape`."""
    name, config = _text_part(config)
    if name is None:
        raise ModelFileError("config.json lacks 'model_type': download it again")
    row = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if row is None or not isinstance(name, str):
        raise UnsupportedModelError(
            f"config.json: model_type {name!r} is not supported; supported are "
            f"{', '.join(sorted(ARCHITECTURES | TEXT_PARTS))}"
        )
    _require_activation(config, row)
    read = _Reader(config, row.defaults, "config.json", row.spellings)
    _refuse_other_parts(row, read)
    hidden = read.integer("hidden_size")
    layers = read.integer("num_hidden_layers", most=_MAX_LAYERS)
    context = read.integer("max_position_embeddings")
    attention = _read_attention(row, read, hidden)
    rope = _read_rope(config, row, read, attention, context)
    if rope.kind == "yarn":
        context = max(context, int(rope.original_max_tokens * rope.factor))
    windows = _read_windows(row, read, layers)
    attention_bias = read.flag("attention_bias")
    output_bias = attention_bias
    if not isinstance(row.output_bias, bool):
        output_bias = read.flag(row.output_bias)
    qk_norm = row.qk_norm if not row.qk_norm_key or read.flag(row.qk_norm_key) else ""
    shape = ModelShape(
        architecture=name,
        layers=layers,
        hidden=hidden,
        **attention,
        vocab=read.integer("vocab_size"),
        intermediate=read.integer("intermediate_size"),
        **(_read_experts(row.experts, read, layers) if row.experts else {}),
        max_context_tokens=context,
        tie_embeddings=read.flag("tie_word_embeddings"),
        **_read_scales(row, read, hidden),
        norms=row.norms,
        qk_norm=qk_norm,
        sinks=row.sinks,
        qkv_bias=attention_bias,
        output_bias=output_bias and row.output_bias is not False,
        mlp_bias=read.flag("mlp_bias"),
        sliding_windows=windows,
        activation=_read_activation(row, read),
        rope=rope,
        window_rope=_read_window_rope(config, row, read, rope) if any(windows) else None,
        unrotated_layers=_read_unrotated(row, read, layers),
        dtype=str(read.raw("dtype", "bfloat16")),
    )
    return replace(shape, quantization=read_quantization(config, shape))


def _text_part(config: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The `model_type` to look for, and the part of config.json that describes it."""
    name = config.get("model_type")
    text = config.get("text_config")
    if name not in TEXT_PARTS or not isinstance(text, dict):
        return name, config
    shared = {key: config[key] for key in _OF_BOTH if key in config}
    return text.get("model_type", TEXT_PARTS[name]), shared | text


def _refuse_other_parts(row: Architecture, read: _Reader) -> None:
    """What some model of a supported architecture might have, and none that is read here has."""
    for key in ("clip_qkv", "use_bidirectional_attention", "use_mtp_attention", *row.refused):
        if value := read.raw(key):
            raise UnsupportedModelError(f"config.json: {key} {value!r} is not supported")


def _read_scales(row: Architecture, read: _Reader, hidden: int) -> dict[str, Any]:
    """Factors and bounds of embeddings, scores, residual stream and logits, and the norms' eps."""
    eps = read.number("rms_norm_eps", 1e-6)
    scales: dict[str, Any] = {"norm_eps": eps}
    if row.scaled_embedding:
        scales["embedding_scale"] = math.sqrt(hidden)
    if row.score_width_key:
        scales["score_scale"] = read.number(row.score_width_key) ** -0.5
    if row.softcaps:
        for ours, theirs in (
            ("score_softcap", "attn_logit_softcapping"),
            ("logit_softcap", "final_logit_softcapping"),
        ):
            scales[ours] = read.number(theirs) if read.raw(theirs) is not None else 0.0
    if row.multipliers:
        # What layers add is multiplied by one factor. Norms undo any factor of the stream, so it
        # can be divided by that factor instead, and nothing is multiplied in the layers.
        residual = read.number("residual_multiplier")
        scales["norm_eps"] = eps / residual**2
        scales["embedding_scale"] = read.number("embedding_multiplier") / residual
        scales["score_scale"] = read.number("attention_multiplier")
        scales["logit_scale"] = 1 / read.number("logits_scaling")
    return scales


def _read_unrotated(row: Architecture, read: _Reader, layers: int) -> tuple[int, ...]:
    if not row.unrotated_period_key:
        return ()
    rotated = read.raw("no_rope_layers")  # in spite of its name 1 is a layer that is rotated
    if rotated is None:
        period = read.integer(row.unrotated_period_key)
        return tuple(range(period - 1, layers, period))
    if not isinstance(rotated, list) or len(rotated) != layers or set(rotated) - {0, 1}:
        raise ModelFileError(
            f"config.json: no_rope_layers must be {layers} times 0 or 1, one for each layer"
        )
    return tuple(layer for layer, is_rotated in enumerate(rotated) if not is_rotated)


def _read_option(option: bool | str, read: _Reader) -> bool:
    """What a row says itself, or by a key."""
    return read.flag(option) if isinstance(option, str) else option


def _read_attention(row: Architecture, read: _Reader, hidden: int) -> dict[str, Any]:
    heads = read.integer("num_attention_heads")
    if row.attention == "mla":
        mla = MlaShape(
            q_rank=read.integer("q_lora_rank", 0, least=0),
            kv_rank=read.integer("kv_lora_rank"),
            nope_dim=read.integer("qk_nope_head_dim"),
            rope_dim=read.integer("qk_rope_head_dim"),
            value_dim=read.integer("v_head_dim"),
        )
        return {
            "heads": heads,
            "kv_heads": heads,
            "head_dim": mla.nope_dim + mla.rope_dim,
            "mla": mla,
        }
    kv_heads = read.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelFileError(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    if read.raw("head_dim") is None and hidden % heads:
        raise ModelFileError(
            f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads} "
            "and there is no head_dim"
        )
    head_dim = read.integer("head_dim", hidden // heads)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def _read_activation(row: Architecture, read: _Reader) -> Activation:
    if row.activation == "clamped_swiglu":
        alpha, limit = read.number("swiglu_alpha"), read.number("swiglu_limit")
        return Activation(kind=row.activation, alpha=alpha, limit=limit)
    return Activation(kind=row.activation)


def _require_activation(config: Mapping[str, Any], row: Architecture) -> None:
    names = _ACTIVATIONS[row.activation]
    given = config.get("hidden_activation") or config.get("hidden_act") or names[0]
    if given not in names:
        raise UnsupportedModelError(
            f"config.json: hidden_act {given!r} is not supported; supported in this architecture "
            f"is {names[0]}"
        )


def _read_experts(row: ExpertRow, read: _Reader, layers: int) -> dict[str, Any]:
    experts = read.integer("num_experts", least=0, most=_MAX_EXPERTS)
    sparse = _read_sparse_layers(read, layers)
    if not experts or not sparse:
        return {}
    chosen = read.integer("num_experts_per_tok")
    if chosen > experts:
        raise ModelFileError(
            f"config.json: num_experts_per_tok {chosen} is above num_experts {experts}"
        )
    width = read.integer(row.width_key)
    return {
        "sparse_layers": sparse,
        "experts": experts,
        "experts_per_token": chosen,
        "moe_intermediate": width,
        "shared_intermediate": _shared_width(row, read, width),
        "shared_gate": row.shared_gate,
        "router": _read_router(row, read, experts, chosen),
        "expert_bias": row.biases,
    }


def _shared_width(row: ExpertRow, read: _Reader, width: int) -> int:
    if row.shared_width_key:
        return read.integer(row.shared_width_key)
    return width * read.integer("n_shared_experts", 0, least=0)


def _read_sparse_layers(read: _Reader, layers: int) -> tuple[int, ...]:
    """Those that are not dense: by their number, the first ones, or named."""
    step = read.integer("decoder_sparse_step", 1)
    first = read.integer("first_k_dense_replace", 0, least=0)
    frequency = read.integer("moe_layer_freq", 1)
    kinds = read.raw("mlp_layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - {"dense", "sparse"}:
            raise ModelFileError(
                f"config.json: mlp_layer_types must name {layers} layers, each dense or sparse"
            )
        return tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")
    dense = read.raw("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ModelFileError(f"config.json: mlp_only_layers is {dense!r}, not a list of integers")
    return tuple(
        i
        for i in range(first, layers)
        if i not in dense and (i + 1) % step == 0 and i % frequency == 0
    )


def _read_router(row: ExpertRow, read: _Reader, experts: int, chosen: int) -> RouterShape:
    groups, per_token = 1, 1
    if read.raw("topk_method", "group") != "greedy":
        groups = read.integer("n_group", 1)
        per_token = read.integer("topk_group", 1)
    if experts % groups or per_token > groups or chosen > per_token * (experts // groups):
        raise ModelFileError(
            f"config.json: {chosen} of {experts} experts cannot be chosen from topk_group "
            f"{per_token} of n_group {groups}"
        )
    if row.group_score == "best_two" and groups > 1 and experts < 2 * groups:
        raise ModelFileError(
            f"config.json: n_group {groups} leaves groups of fewer than two of {experts} experts"
        )
    score: Any = row.score
    if score not in ("softmax", "sigmoid"):
        score = read.raw(row.score, "softmax")
    if score not in ("softmax", "sigmoid"):
        raise UnsupportedModelError(
            f"config.json: {row.score} {score!r} is not supported; supported are softmax, sigmoid"
        )
    return RouterShape(
        score=score,
        bias=row.router_bias,
        correction=_read_option(row.correction, read),
        groups=groups,
        groups_per_token=per_token,
        group_score=row.group_score,
        normalize=_read_option(row.normalize, read),
        scale=read.number("routed_scaling_factor", 1.0),
        exact=row.exact_router,
    )


def _read_windows(row: Architecture, read: _Reader, layers: int) -> tuple[int, ...]:
    none = (0,) * layers
    if row.window_key is None or read.raw("sliding_window") is None:
        return none
    if row.window_key and not read.flag(row.window_key):
        return none
    window = read.integer("sliding_window")
    kinds = read.raw("layer_types")
    if kinds is None and row.window_period_key:
        period = read.integer(row.window_period_key)
        return tuple(window if (i + 1) % period else 0 for i in range(layers))
    if kinds is None:
        start_key = row.window_start_key
        first = read.integer(start_key, 0, least=0) if start_key else 0
        return tuple(window if i >= first else 0 for i in range(layers))
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in known for k in kinds):
        raise UnsupportedModelError(
            f"config.json: layer_types must name {layers} layers, each one of {', '.join(known)}"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _read_rope(
    config: Mapping[str, Any],
    row: Architecture,
    read: _Reader,
    attention: Mapping[str, Any],
    context: int,
) -> RopeShape:
    """Both spellings: `rope_scaling` beside `rope_theta`, and `rope_parameters` with all."""
    given = _rope_table(config, row, "full_attention")
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModelError(
            f"config.json: rope parameters {given!r} are not one flat table, which is not supported"
        )
    kind = given.get("rope_type") or given.get("type") or "default"
    rope = _Reader(given, {}, "config.json: rope parameters")
    theta = rope.number("rope_theta", read.number("rope_theta", 10000.0))
    rotary_dim = _read_rotary_dim(rope, read, attention)
    if kind == "dynamic" and row.stretched_base and given.get("alpha") and rotary_dim > 2:
        theta *= rope.number("alpha") ** (rotary_dim / (rotary_dim - 2))
        kind = "default"
    if kind not in ("default", "linear", "llama3", "yarn", "longrope"):
        raise UnsupportedModelError(
            f"config.json: rope type {kind!r} is not supported; supported are default, linear, "
            "llama3, yarn, longrope"
        )
    common: dict[str, Any] = {
        "kind": kind,
        "theta": theta,
        "rotary_dim": rotary_dim,
        "interleaved": _read_option(row.interleaved_rope, read),
    }
    if kind == "default":
        return RopeShape(**common)
    if kind == "linear":
        return RopeShape(**common, factor=rope.number("factor"))
    top = config.get("original_max_position_embeddings")
    original = (
        read.integer("original_max_position_embeddings")
        if top is not None
        else rope.integer("original_max_position_embeddings", context)
    )
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low == high:
            raise ModelFileError(
                f"config.json: rope low_freq_factor and high_freq_factor are both {low}"
            )
        return RopeShape(
            **common,
            factor=rope.number("factor"),
            original_max_tokens=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    if kind == "longrope":
        return _longrope(common, rope, original, context)
    factor = rope.number("factor", context / original)
    return RopeShape(
        **common,
        factor=factor,
        original_max_tokens=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=_yarn_attention_factor(rope, factor),
        score_factor=_yarn_score_factor(rope, factor) if row.attention == "mla" else 1.0,
        query_growth=rope.number("llama_4_scaling_beta", 0.0)
        if rope.raw("llama_4_scaling_beta")
        else 0.0,
    )


def _rope_table(config: Mapping[str, Any], row: Architecture, layers: str) -> Any:
    """The rope parameters of one kind of layers."""
    given = config.get("rope_parameters") or config.get("rope_scaling")
    given = given or row.defaults.get("rope_scaling", {})
    if row.window_rope and isinstance(given, dict) and layers in given:
        return given[layers]
    return given


def _read_window_rope(
    config: Mapping[str, Any], row: Architecture, read: _Reader, rope: RopeShape
) -> RopeShape | None:
    """Of layers with a window, where they are not those of the others."""
    if not row.window_rope:
        return None
    theta = read.number("rope_local_base_freq", rope.theta)
    given = _rope_table(config, row, "sliding_attention")
    if isinstance(given, dict) and given is not _rope_table(config, row, "full_attention"):
        if given.get("rope_type", "default") != "default":
            raise UnsupportedModelError(
                f"config.json: rope type {given['rope_type']!r} of layers with a window is not "
                "supported; supported is default"
            )
        theta = _Reader(given, {}, "config.json: rope parameters").number("rope_theta", theta)
    return RopeShape(theta=theta, rotary_dim=rope.rotary_dim, interleaved=rope.interleaved)


def _longrope(common: Mapping[str, Any], rope: _Reader, original: int, context: int) -> RopeShape:
    """A divisor for each frequency. A model that was stretched takes the ones of long texts for all
    texts, since keys of both kinds could not stand side by side in the cache.
    """
    factor = context / original
    name = "long_factor" if factor > 1 else "short_factor"
    divisors = rope.raw(name)
    pairs = common["rotary_dim"] // 2
    if (
        not isinstance(divisors, list)
        or len(divisors) != pairs
        or any(isinstance(one, bool) or not isinstance(one, int | float) for one in divisors)
        or min(divisors) <= 0
    ):
        raise ModelFileError(f"config.json: rope {name} must be {pairs} numbers above 0")
    scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeShape(
        **common,
        factor=factor,
        original_max_tokens=original,
        divisors=tuple(map(float, divisors)),
        attention_factor=rope.number("attention_factor", scale),
    )


def _read_rotary_dim(rope: _Reader, read: _Reader, attention: Mapping[str, Any]) -> int:
    mla: MlaShape | None = attention.get("mla")
    if mla:
        of, rotary_dim = mla.rope_dim, mla.rope_dim
    else:
        partial = rope.number("partial_rotary_factor", read.number("partial_rotary_factor", 1.0))
        of = attention["head_dim"]
        rotary_dim = read.integer("rotary_dim", int(of * partial))
    if rotary_dim % 2 or not 2 <= rotary_dim <= of:
        raise UnsupportedModelError(
            f"config.json: {rotary_dim} of {of} elements of a head would be rotated; "
            "supported is an even number of at least 2"
        )
    return rotary_dim


def _yarn_scale(factor: float, weight: float) -> float:
    """YaRN (arXiv 2309.00071), section 3.4, with DeepSeek's `mscale` as the weight."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _yarn_attention_factor(rope: _Reader, factor: float) -> float:
    """The scale of cos and sin."""
    if rope.raw("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.raw("mscale") and rope.raw("mscale_all_dim"):
        return _yarn_scale(factor, rope.number("mscale")) / _yarn_scale(
            factor, rope.number("mscale_all_dim")
        )
    return _yarn_scale(factor, 1.0)


def _yarn_score_factor(rope: _Reader, factor: float) -> float:
    """DeepSeek's scale of what is not rotated, too: of query and of key."""
    if not rope.raw("mscale_all_dim"):
        return 1.0
    return _yarn_scale(factor, rope.number("mscale_all_dim")) ** 2
