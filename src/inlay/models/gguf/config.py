"""config.json for a GGUF file: its metadata under the names that the makers' files use."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type

from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.core.weight_format import BLOCK_FORMATS
from inlay.models.gguf.architectures import KEYS, NAMES, SIGMOID, SOFTMAX, GgufRow, row_of
from inlay.models.gguf.reader import GgufFile, GgufTensor

# Where most weights are of a type, the kernels' format that holds as much of them.
_FORMATS = {
    Type.F32: "float32",
    Type.F16: "float32",
    Type.BF16: "bfloat16",
    Type.Q8_0: "int8:g32",
    Type.Q6_K: "int8:g32",
    Type.Q5_K: "int8:g32",
    Type.Q5_0: "int8:g32",
    Type.Q5_1: "int8:g32",
    Type.MXFP4: "mxfp4",
    Type.Q4_K: "uint4:g32",
    Type.Q4_1: "uint4:g32",
}
_SMALLEST = "int4:g32"
_HEAD, _EMBEDDING = NAMES["head"], NAMES["embedding"]
_MODEL = "model"
_YARN_KEYS = {
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_attn_factor": "attention_factor",
}
# Llama 3.1 and later: frequencies are stretched by a table, made from these and its largest value.
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config_of(file: GgufFile) -> dict[str, Any]:
    """What config.json would say.

    Raises:
        ModelFileError: metadata are missing.
        UnsupportedModelError: an architecture that is not read from GGUF, or an option of it.
    """
    kind = file.metadata.get("general.type", _MODEL)
    if kind != _MODEL:
        raise UnsupportedModelError(
            f"{file.files[0].name} is GGUF of type {kind!r}, not a model: name the file of the "
            "model that it belongs to"
        )
    name = file.metadata.get("general.architecture")
    row = row_of(name, file.files[0].name)
    prefix = f"{name}."
    given = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    keys = KEYS | {"expert_count": row.experts_key}
    config: dict[str, Any] = dict(row.config)
    config |= {ours: given[theirs] for theirs, ours in keys.items() if theirs in given}
    if missing := [key for key in ("num_hidden_layers", "hidden_size") if key not in config]:
        raise ModelFileError(f"{file.files[0]} lacks the metadata for {missing[0]}")
    if not isinstance(config["num_hidden_layers"], int):
        raise ModelFileError(
            f"{file.files[0]}: block_count is {config['num_hidden_layers']!r}, not a whole number"
        )
    if found := [key for key in row.unread if key in given]:
        raise UnsupportedModelError(
            f"{file.files[0].name}: its attention has {found[0]}, which Inlay does not know"
        )
    config["num_hidden_layers"] -= given.get("nextn_predict_layers", 0)
    left_out = row.makers.get((config["num_hidden_layers"], given.get("expert_count", 0)), {})
    if "expert_group_count" not in given:
        config |= {key: left_out[key] for key in ("n_group", "topk_group") if key in left_out}
    config["model_type"] = _model_type(file, row, {**left_out, **given}, config)
    if config.get("n_group", 1) > 1:
        config["topk_method"] = "group_limited_greedy"  # what DeepSeek-V2 calls it
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.files[0]} lacks token_embd.weight: download it again")
    config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    is_latent = "kv_lora_rank" in config
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors and not is_latent
    config["attention_out_bias"] = "blk.0.attn_output.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    if not config.get("sliding_window"):
        config.pop("sliding_window", None)  # zero says that there is none
    config |= _window_pattern(file, given, config["num_hidden_layers"])
    if row.score_widths is not None:
        width = row.score_widths.get(config["num_hidden_layers"], config.get("head_dim"))
        config["query_pre_attn_scalar"] = width
    if (shared := file.tensors.get("blk.0.ffn_up_shexp.weight")) is not None:
        config.setdefault("shared_expert_intermediate_size", shared.shape[0])
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors
    config |= _head_sizes(given, config)
    config["rope_scaling"] = _rope_scaling(file, row, {**left_out, **given}, config)
    config["torch_dtype"] = "bfloat16"
    config["quantization_config"] = _quantization(file)
    for key, ours in (("bos", "bos_token_id"), ("eos", "eos_token_id")):
        if (token := file.metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[ours] = int(token)
    return config


def _window_pattern(file: GgufFile, given: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Which layers have a window, where metadata say so: each but every n-th one, or a list."""
    pattern = given.get("attention.sliding_window_pattern")
    if pattern is None:
        return {}
    if isinstance(pattern, list) and len(pattern) >= layers:
        kinds = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
        return {"layer_types": kinds[:layers]}
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        return {"sliding_window_pattern": pattern}
    raise ModelFileError(
        f"{file.files[0]}: attention.sliding_window_pattern is {str(pattern)[:80]}, neither a "
        f"number nor a list for {layers} layers: download it again"
    )


def _model_type(
    file: GgufFile, row: GgufRow, given: Mapping[str, Any], config: Mapping[str, Any]
) -> str:
    gating = given.get("expert_gating_func", row.gating)
    if row.sigmoid_type and gating == SIGMOID:
        return row.sigmoid_type
    if gating != row.gating or (row.sigmoid_type and config["norm_topk_prob"]):
        raise UnsupportedModelError(
            f"{file.files[0].name}: a router with expert_gating_func {gating} "
            f"(softmax is {SOFTMAX}, sigmoid {SIGMOID}) and expert_weights_norm "
            f"{config.get('norm_topk_prob')} is none of {row.model_type}: take the model's "
            "*.safetensors"
        )
    if row.mixture_type and given.get("expert_count"):
        return row.mixture_type
    if row.growing_type and "attention.temperature_scale" in given:
        return row.growing_type
    if row.windowed_type and given.get("attention.sliding_window"):
        return row.windowed_type
    return row.model_type


def _head_sizes(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What is rotated of a head, and the sizes of latent attention."""
    rotated, whole = given.get("rope.dimension_count"), given.get("attention.key_length")
    if "kv_lora_rank" not in config:
        if whole is None and config.get("num_attention_heads"):
            whole = config["hidden_size"] // config["num_attention_heads"]
        if rotated in (None, whole) or whole is None:
            return {}
        return {"partial_rotary_factor": math.nextafter(rotated / whole, 1)}  # times whole: rotated
    # Files from 2025 on give the sizes of the latent as those of a head, and a head's own besides.
    whole = given.get("attention.key_length_mla", whole)
    value = given.get("attention.value_length_mla", given.get("attention.value_length"))
    if whole is None or rotated is None:
        return {}
    return {
        "qk_nope_head_dim": whole - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value,
        "head_dim": rotated,  # as transformers calls it
        "num_key_value_heads": config.get("num_attention_heads"),
        "q_lora_rank": config.get("q_lora_rank"),  # without the key it is 1536 there
    }


def _quantization(file: GgufFile) -> dict[str, Any]:
    """The format of most weights, of most beside the experts where there are such, and of the
    output matrix, or the embedding that is it.
    """
    matrices = {name: tensor for name, tensor in file.tensors.items() if len(tensor.shape) > 1}
    experts = [tensor for name, tensor in matrices.items() if "_exps." in name]
    rest = [tensor for name, tensor in matrices.items() if "_exps." not in name]
    head = [matrices[_HEAD if _HEAD in matrices else _EMBEDDING]]
    # Rows of an embedding that is not the output matrix, too, are read from the file.
    held = {name: one for name, one in matrices.items() if name != _EMBEDDING or one in head}
    return {
        "quant_method": "gguf",
        "weight_format": _format_of(experts or rest),
        "rest": _format_of(rest),
        "head": _format_of(head),
        "blocks": {
            "experts": _format_of(experts or rest, _own_format),
            "rest": _format_of(rest, _own_format),
            "head": _format_of(head, _own_format),
            "file_bytes": sum(tensor.data.nbytes for tensor in held.values()),
        },
    }


def _nearest_format(kind: Type) -> str:
    return _FORMATS.get(kind, _SMALLEST)


def block_format(kind: Type) -> str | None:
    """The kernels' format of a type's blocks; None: they take none of the type."""
    name = kind.name.lower()
    return name if name in BLOCK_FORMATS else None


def _own_format(kind: Type) -> str:
    if kind is Type.F16:
        return "float16"
    return block_format(kind) or _nearest_format(kind)


def _format_of(
    matrices: Iterable[GgufTensor], format_of: Callable[[Type], str] = _nearest_format
) -> str:
    weights_of: Counter[str] = Counter()
    for tensor in matrices:
        weights_of[format_of(tensor.kind)] += math.prod(tensor.shape)
    return weights_of.most_common(1)[0][0]


def _rope_scaling(
    file: GgufFile, row: GgufRow, given: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any] | None:
    kind, factor = given.get("rope.scaling.type", "none"), given.get("rope.scaling.factor", 1.0)
    if kind == "linear" and factor != 1.0:
        return {"rope_type": kind, "factor": float(factor)}
    if kind == "yarn" and factor != 1.0:
        return _yarn(row, given, float(factor))
    if "rope_factors_long.weight" in file.tensors:
        return _longrope(file, given, config)
    if "rope_freqs.weight" not in file.tensors:
        return None
    table = np.asarray(file.tensors["rope_freqs.weight"].data, np.float32)
    scaling = _LLAMA3 | {"factor": float(table.max())}
    if not np.allclose(table, _llama3_table(scaling, config, len(table)), rtol=1e-3):
        raise UnsupportedModelError(
            f"{file.files[0].name}: its table of rotary frequencies is none of Llama 3's, and no "
            "other is read from GGUF: take the model's *.safetensors"
        )
    return scaling


def _longrope(
    file: GgufFile, given: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "original_max_position_embeddings": int(
            given.get(
                "rope.scaling.original_context_length", config.get("max_position_embeddings", 0)
            )
        ),
    }
    for name in ("long", "short"):
        factors = file.tensors[f"rope_factors_{name}.weight"].data
        scaling[f"{name}_factor"] = [float(one) for one in np.asarray(factors, np.float32)]
    if (factor := given.get("rope.scaling.attn_factor")) is not None:
        scaling["attention_factor"] = float(factor)
    return scaling


def _yarn(row: GgufRow, given: Mapping[str, Any], factor: float) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor, **row.rope}
    scaling["original_max_position_embeddings"] = int(
        given.get("rope.scaling.original_context_length", 0)
    )
    for theirs, ours in _YARN_KEYS.items():
        value = given.get(f"rope.scaling.{theirs}", given.get(ours))
        if value is not None:
            scaling[ours] = float(value)
    if (tenth := given.get("rope.scaling.yarn_log_multiplier")) is not None:
        # A tenth of `mscale_all_dim` in float32; `mscale` is the same in what makers publish, so
        # that it does not matter that Mistral's files have all of it.
        scaling["mscale"] = scaling["mscale_all_dim"] = round(10 * float(tenth), 6)
    if row.growing_type and (growth := given.get("attention.temperature_scale")) is not None:
        scaling["llama_4_scaling_beta"] = float(growth)
    return scaling


def _llama3_table(
    scaling: Mapping[str, Any], config: Mapping[str, Any], count: int
) -> np.ndarray[Any, Any]:
    """What the frequencies are divided by. Source: Llama 3.1's own code."""
    theta = float(config.get("rope_theta", 10000.0))
    wavelengths = 2 * np.pi * theta ** (np.arange(count) / count)
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    table: np.ndarray[Any, Any] = 1 / ((1 - smooth) / factor + smooth)
    return table
