"""The modules of a model by their makers' names, and which of them a list of patterns means."""

import re
from collections.abc import Callable, Mapping
from fnmatch import translate
from functools import cache

from inlay.core.model_shape import ModelShape
from inlay.core.quantization import StoredForm

FormOf = Callable[[str], StoredForm | None]
"""In which form files have the matrix of a module of that name; None: as floats."""

_LINEAR = ("gate_proj", "up_proj", "down_proj")
_W123 = tuple(f"block_sparse_moe.experts.0.w{number}" for number in (1, 2, 3))
# Where experts, here the first one, have other names than most.
_EXPERTS: Mapping[str, tuple[str, ...]] = {
    "gpt_oss": ("mlp.experts",),
    "granitemoe": ("block_sparse_moe.input_linear", "block_sparse_moe.output_linear"),
    "minimax_m2": _W123,
    "mixtral": _W123,
}
_SHARED = {"hunyuan_v1_moe": "shared_mlp", "qwen2_moe": "shared_expert"}
# The attention of a layer and its matrices, where they have other names than most.
_BAILING = ("attention.query_key_value", "attention.dense")
_ATTENTION: Mapping[str, tuple[str, ...]] = {
    "bailing_moe": _BAILING,
    "bailing_moe_v2": _BAILING,
    "phi3": ("self_attn.qkv_proj", "self_attn.o_proj"),
}
# What stands before `layers` where a model has a part of text.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.")


def modules_of(shape: ModelShape) -> Mapping[str, tuple[str, ...]]:
    """Names of modules by the part of the model: `experts`, `rest`, `attention` and `head`, as
    `Quantization` has them. Of experts the first of each layer stands for all.
    """
    experts, rest, attention = list[str](), list[str](), list[str]()
    phi3 = shape.architecture == "phi3"
    mlp = ("gate_up_proj", "down_proj") if phi3 else _LINEAR
    for layer in range(shape.layers):
        base = f"model.layers.{layer}"
        attention += [f"{base}.{name}" for name in _attention(shape)]
        if layer not in shape.sparse_layers:
            rest += [f"{base}.mlp.{name}" for name in mlp]
            continue
        of_architecture = _EXPERTS.get(shape.architecture)
        experts += [
            f"{base}.{name}"
            for name in of_architecture or (f"mlp.experts.0.{name}" for name in _LINEAR)
        ]
        if shape.shared_intermediate:
            shared = _SHARED.get(shape.architecture, "shared_experts")
            rest += [f"{base}.mlp.{shared}.{name}" for name in _LINEAR]
    return {
        "experts": tuple(experts),
        "rest": tuple(rest),
        "attention": tuple(attention),
        "head": () if shape.tie_embeddings else ("lm_head",),
    }


def _attention(shape: ModelShape) -> tuple[str, ...]:
    if shape.architecture in _ATTENTION:
        return _ATTENTION[shape.architecture]
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    if shape.mla:
        # What latent attention has per head is held as floats in any case.
        down = ("q_a_proj", "q_b_proj") if shape.mla.q_rank else ("q_proj",)
        names = (*down, "kv_a_proj_with_mqa", "o_proj")
    return tuple(f"self_attn.{name}" for name in names)


def is_named(module: str, patterns: tuple[str, ...]) -> bool:
    """Whether a list of names means a module, as the loaders of makers read such lists.

    A pattern is a regular expression after `re:`, has `*` for anything, or is some parts of a name
    between points, such as `self_attn`: of the module, of one above it, or its last ones.
    """
    plain, expressions = _sorted(patterns)
    steps = module.split(".")
    runs = (
        ".".join(steps[first:end])
        for first in range(len(steps))
        for end in range(first + 1, len(steps) + 1)
    )
    if any(run in plain for run in runs):
        return True
    return any(one.match(name) for one in expressions for name in all_names(module))


def all_names(module: str) -> tuple[str, ...]:
    """What a module is called in a model of text, and where a model has a part of text."""
    inside = module.removeprefix("model.")
    return (module,) if inside == module else tuple(prefix + inside for prefix in _PREFIXES)


@cache
def _sorted(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Names, and what is to be matched."""
    plain, expressions = set[str](), list[re.Pattern[str]]()
    for pattern in patterns:
        if pattern.startswith("re:"):
            expressions.append(re.compile(pattern[3:]))
        elif "*" in pattern:
            whole = translate(pattern).removesuffix(r"\Z")
            expressions.append(re.compile(whole + r"(?:\.|\Z)"))
        else:
            # Of a model with a part of text names are those of the text alone.
            for prefix in _PREFIXES[1:]:
                pattern = pattern.replace(prefix, "model.")
            plain.add(pattern.strip("."))
    return frozenset(plain), tuple(expressions)
