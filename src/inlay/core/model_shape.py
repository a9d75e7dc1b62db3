"""What config.json says about a model: its shapes, read once, checked, without torch.

Owns the rows of supported architectures (`ARCHITECTURES`) and the reading of their config
keys. Knows nothing of weights or their names (`inlay.models.weight_names`).

    shape = ModelShape.from_directory(directory)

A row differs from another only by data: default values, and which optional parts it has.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError

# More than any model has; a list per layer of a damaged file's number would fill the memory.
_MAX_LAYERS = 10_000

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One supported `model_type`.

    Attributes:
        defaults: values that config.json may leave out.
        qk_norm: q and k of each head are RMS-normalised before the rotation.
        experts: layers may be mixtures of experts.
        window_key: config key that switches `sliding_window` on; empty: it is always on; None:
            it is ignored.
        window_start_key: config key with the number of leading layers that have no window.
        output_bias: `attention_bias` covers the output projection too.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    qk_norm: bool = False
    experts: bool = False
    window_key: str | None = None
    window_start_key: str = ""
    output_bias: bool = True


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "mistral": Architecture(defaults={"num_key_value_heads": 8}, window_key=""),
    "qwen3": Architecture(
        defaults={"head_dim": 128, "max_window_layers": 28},
        qk_norm=True,
        window_key="use_sliding_window",
        window_start_key="max_window_layers",
    ),
    "qwen3_moe": Architecture(
        defaults={"num_key_value_heads": 4},
        qk_norm=True,
        experts=True,
        window_key="use_sliding_window",
    ),
}

# Other spellings of a key, tried in this order (transformers 4 and 5, older publishers).
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "num_experts": ("num_experts", "num_local_experts"),
    "dtype": ("dtype", "torch_dtype"),
}


@dataclass(frozen=True, kw_only=True)
class RopeShape:
    """Rotary positions of a model.

    Attributes:
        kind: how the frequencies are scaled.
        theta: base wavelength.
        rotary_dim: leading elements of a head that are rotated, even.
        factor: stretch of the context.
        original_max_tokens: context before stretching (llama3, yarn).
        low_freq_factor, high_freq_factor: bounds of the blend (llama3).
        beta_fast, beta_slow, truncate: bounds of the blend (yarn).
        attention_factor: multiplies cos and sin (yarn), else 1.
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    rotary_dim: int
    factor: float = 1.0
    original_max_tokens: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes and options of one decoder model.

    Attributes:
        architecture: key of `ARCHITECTURES`.
        hidden: width of the residual stream.
        intermediate: width of a dense MLP.
        sparse_layers: numbers of the layers that are mixtures of experts.
        experts, experts_per_token, moe_intermediate: 0 without experts.
        normalize_expert_weights: weights of the chosen experts are scaled to sum 1.
        sliding_windows: per layer, the number of tokens a query sees; 0 is all of them.
        max_context_tokens: positions the model was made for (after yarn).
        dtype: of the weights as config.json names it.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    sparse_layers: tuple[int, ...] = ()
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    normalize_expert_weights: bool = False
    max_context_tokens: int
    tie_embeddings: bool = False
    norm_eps: float = 1e-6
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    sliding_windows: tuple[int, ...] = ()
    rope: RopeShape
    dtype: str = "bfloat16"

    @property
    def attention_parameters(self) -> int:
        """Weights of one attention part, biases and norms included."""
        q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        count = self.hidden * (2 * q_rows + 2 * kv_rows)
        count += (q_rows + 2 * kv_rows) * self.qkv_bias + self.hidden * self.output_bias
        return count + 2 * self.head_dim * self.qk_norm

    @property
    def mlp_parameters(self) -> int:
        """Weights of one dense MLP."""
        bias = (2 * self.intermediate + self.hidden) * self.mlp_bias
        return 3 * self.hidden * self.intermediate + bias

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert."""
        return 3 * self.hidden * self.moe_intermediate

    @property
    def parameters(self) -> int:
        """All weights; tied embeddings count once."""
        return self._parameters(self.experts) + self.vocab * self.hidden * (
            1 if self.tie_embeddings else 2
        )

    @property
    def active_parameters(self) -> int:
        """Weights that one token's pass multiplies, the LM head included, the embedding not."""
        return self._parameters(self.experts_per_token) + self.vocab * self.hidden

    def _parameters(self, experts: int) -> int:
        sparse = len(self.sparse_layers)
        per_layer = self.attention_parameters + 2 * self.hidden
        return (
            self.layers * per_layer
            + (self.layers - sparse) * self.mlp_parameters
            + sparse * (self.hidden * self.experts + experts * self.expert_parameters)
            + self.hidden
        )

    def kv_token_bytes(self, dtype_bytes: int = 2) -> int:
        """Bytes of keys and values per token, all layers together."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype_bytes

    @classmethod
    def from_directory(cls, directory: Path) -> "ModelShape":
        """Read `directory/config.json`.

        Raises:
            ModelNotFoundError: no such directory or no config.json in it.
            ModelFileError: not JSON, or a value is missing or impossible.
            UnsupportedModelError: the architecture or an option is not supported.
        """
        return cls.from_config(read_config(directory))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """Read the content of a config.json. Raises as `from_directory`."""
        return _read_shape(config)


def read_config(directory: Path) -> dict[str, Any]:
    """The content of config.json as it is.

    Raises:
        ModelNotFoundError: no such directory or no config.json in it.
        ModelFileError: not a JSON object.
    """
    file = directory / "config.json"
    if not directory.is_dir():
        raise ModelNotFoundError(
            f"there is no model directory {directory}: give the path of a directory with "
            "config.json, or a hub name such as Qwen/Qwen3-0.6B"
        )
    if not file.is_file():
        raise ModelNotFoundError(
            f"{directory} has no config.json, so it is not a Hugging Face model directory: name "
            "the directory that holds config.json, tokenizer.json and *.safetensors"
        )
    try:
        config = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file} is not valid JSON ({error}): download it again") from error
    if not isinstance(config, dict):
        raise ModelFileError(f"{file} holds a {type(config).__name__}, not a JSON object")
    return config


class _Reader:
    """Typed access to the keys of a config, with one message per kind of mistake."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], name: str) -> None:
        self._config, self._defaults, self._name = config, defaults, name

    def raw(self, key: str, default: Any = None) -> Any:
        for spelling in _SPELLINGS.get(key, (key,)):
            if self._config.get(spelling) is not None:
                return self._config[spelling]
        return self._defaults.get(key, default)

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1
    ) -> int:
        value = self.raw(key, default)
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


def _read_shape(config: Mapping[str, Any]) -> ModelShape:
    name = config.get("model_type")
    row = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if row is None or not isinstance(name, str):
        raise UnsupportedModelError(
            f"config.json: model_type {name!r} is not supported; supported are "
            f"{', '.join(sorted(ARCHITECTURES))}"
        )
    _refuse_unsupported(config)
    read = _Reader(config, row.defaults, "config.json")
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
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
    layers = read.integer("num_hidden_layers", most=_MAX_LAYERS)
    context = read.integer("max_position_embeddings")
    rope = _read_rope(config, read, head_dim, context)
    if rope.kind == "yarn":
        context = max(context, int(rope.original_max_tokens * rope.factor))
    attention_bias = read.flag("attention_bias")
    return ModelShape(
        architecture=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=read.integer("vocab_size"),
        intermediate=read.integer("intermediate_size"),
        **(_read_experts(read, layers) if row.experts else {}),
        max_context_tokens=context,
        tie_embeddings=read.flag("tie_word_embeddings"),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        qk_norm=row.qk_norm,
        qkv_bias=attention_bias,
        output_bias=attention_bias and row.output_bias,
        mlp_bias=read.flag("mlp_bias"),
        sliding_windows=_read_windows(row, read, layers),
        rope=rope,
        dtype=str(read.raw("dtype", "bfloat16")),
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UnsupportedModelError(
            f"config.json: weights quantised with {method or quantization!r} are not supported; "
            "supported are float32, bfloat16 and float16 weights: take the model's unquantised "
            "variant"
        )
    activation = config.get("hidden_act") or config.get("hidden_activation") or "silu"
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"config.json: hidden_act {activation!r} is not supported; supported is silu"
        )


def _read_experts(read: _Reader, layers: int) -> dict[str, Any]:
    experts = read.integer("num_experts", least=0)
    step = read.integer("decoder_sparse_step", 1)
    dense = read.raw("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ModelFileError(f"config.json: mlp_only_layers is {dense!r}, not a list of integers")
    sparse = [i for i in range(layers) if i not in dense and (i + 1) % step == 0]
    if not experts or not sparse:
        return {}
    chosen = read.integer("num_experts_per_tok")
    if chosen > experts:
        raise ModelFileError(
            f"config.json: num_experts_per_tok {chosen} is above num_experts {experts}"
        )
    return {
        "sparse_layers": tuple(sparse),
        "experts": experts,
        "experts_per_token": chosen,
        "moe_intermediate": read.integer("moe_intermediate_size"),
        "normalize_expert_weights": read.flag("norm_topk_prob"),
    }


def _read_windows(row: Architecture, read: _Reader, layers: int) -> tuple[int, ...]:
    none = (0,) * layers
    if row.window_key is None or read.raw("sliding_window") is None:
        return none
    if row.window_key and not read.flag(row.window_key):
        return none
    window = read.integer("sliding_window")
    kinds = read.raw("layer_types")
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


def _read_rope(config: Mapping[str, Any], read: _Reader, head_dim: int, context: int) -> RopeShape:
    """Both spellings: `rope_scaling` beside `rope_theta`, and `rope_parameters` with all."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModelError(
            f"config.json: rope parameters {given!r} are not one flat table, which is not supported"
        )
    kind: RopeKind = given.get("rope_type") or given.get("type") or "default"
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise UnsupportedModelError(
            f"config.json: rope type {kind!r} is not supported; supported are default, linear, "
            "llama3, yarn"
        )
    rope = _Reader(given, {}, "config.json: rope parameters")
    partial = rope.number("partial_rotary_factor", read.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * partial)
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise UnsupportedModelError(
            f"config.json: {rotary_dim} of {head_dim} elements of a head would be rotated; "
            "supported is an even number of at least 2"
        )
    theta = rope.number("rope_theta", read.number("rope_theta", 10000.0))
    if kind == "default":
        return RopeShape(theta=theta, rotary_dim=rotary_dim)
    if kind == "linear":
        return RopeShape(
            kind=kind, theta=theta, rotary_dim=rotary_dim, factor=rope.number("factor")
        )
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
            kind=kind,
            theta=theta,
            rotary_dim=rotary_dim,
            factor=rope.number("factor"),
            original_max_tokens=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    factor = rope.number("factor", context / original)
    return RopeShape(
        kind="yarn",
        theta=theta,
        rotary_dim=rotary_dim,
        factor=factor,
        original_max_tokens=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=_yarn_attention_factor(rope, factor),
    )


def _yarn_attention_factor(rope: _Reader, factor: float) -> float:
    """The scale of cos and sin. Source: YaRN (arXiv 2309.00071), section 3.4; DeepSeek's mscale."""
    if rope.raw("attention_factor") is not None:
        return rope.number("attention_factor")

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.raw("mscale") and rope.raw("mscale_all_dim"):
        return scale(rope.number("mscale")) / scale(rope.number("mscale_all_dim"))
    return scale(1.0)
