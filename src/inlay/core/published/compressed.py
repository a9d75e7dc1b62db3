"""compressed-tensors: groups of modules by their names or classes, each quantised in its own way.

Source: the configuration of compressed-tensors, and the forms of its compressors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inlay.core.errors import UnsupportedModelError
from inlay.core.published.modules import FormOf, is_named
from inlay.core.published.options import Options
from inlay.core.published.small_floats import (
    BLOCK,
    FP8_BLOCKS,
    FP8_ROWS,
    MXFP4,
    MXFP8,
    NVFP4,
)
from inlay.core.quantization import StoredForm, integer_form

# How scales were found, and what is done with activations and caches.
_MAKING = ("dynamic", "observer", "observer_kwargs", "scale_dtype", "zp_dtype")
_COMPUTING = (
    "global_compression_ratio",
    "kv_cache_scheme",
    "moe_sparsity_config",
    "quantization_status",
    "version",
)
# All matrices; makers name the class, some of them that of a model's own copy of it.
_CLASSES = ("Linear", "torch.nn.Linear")
_HEAD = "lm_head"


@dataclass(frozen=True)
class _Weights:
    """Of one group."""

    bits: int
    strategy: str
    group: int
    symmetric: bool
    in_order: bool


def compressed_tensors(options: Options) -> tuple[str, FormOf]:
    """Integers and small floats by groups of modules.

    Raises:
        UnsupportedModelError: another way of quantising, of packing, or an option that is not
            known.
    """
    packing = options.one_of("format", (*_FORMATS, "mixed-precision"))
    ignored = options.names("ignore")
    groups = options.part("config_groups")
    _refuse_more(options)
    options.end(*_COMPUTING)
    forms = []
    for name in groups.keys():
        group = groups.part(name)
        targets = group.names("targets")
        form = _form(group, packing)
        if form is not None:
            forms.append((targets, form))
    if not forms:
        raise options.refused("config_groups", {}, "a group with weights")

    def form_of(module: str) -> StoredForm | None:
        if is_named(module, ignored):
            return None
        by_name = (form for targets, form in forms if is_named(module, targets))
        by_class = (form for targets, form in forms if set(targets) & set(_CLASSES))
        return next(by_name, None) or next(by_class, None)

    return "compressed-tensors", form_of


def _refuse_more(options: Options) -> None:
    """Zeros that are left out, and matrices that stand before the weights."""
    for key, nothing in (("sparsity_config", "dense"), ("transform_config", None)):
        value = options.get(key, {})
        if not isinstance(value, dict) or value.get("format", nothing) != nothing:
            raise options.refused(key, value, "none")
    if transforms := options.get("transform_config", {}).get("config_groups"):
        raise options.refused("transform_config", transforms, "none")


def _form(group: Options, packing: str) -> StoredForm | None:
    """How the matrices of a group are stored; None: only what passes them is quantised."""
    for key in ("input_activations", "output_activations"):
        group.get(key)
    packing = group.one_of("format", tuple(_FORMATS), packing)
    if group.get("weights") is None:
        return None
    given = group.part("weights")
    kind, form = _FORMATS[packing]
    kinds = ("int", "float") if kind == "either" else (kind,)
    kind = given.one_of("type", kinds, "int")
    weights = _Weights(
        bits=given.whole("num_bits", 8),
        strategy=given.one_of("strategy", _STRATEGIES, _strategy(given)),
        group=given.whole("group_size", -1),
        symmetric=given.one_of("symmetric", (True, False), True),
        in_order=given.get("actorder") in (None, False, "weight", "static"),
    )
    given.one_of("block_structure", (None, [BLOCK, BLOCK], f"{BLOCK}x{BLOCK}"))
    given.one_of("actorder", (None, True, False, "group", "dynamic", "weight", "static"))
    given.end(*_MAKING)
    group.end()
    found = (_fp8 if kind == "float" and form is _int8 else form)(weights)
    if found is None:
        raise UnsupportedModelError(
            f"{given.where}: {kind} weights of {weights.bits} bits by {weights.strategy}, "
            f"group_size {weights.group}, symmetric {weights.symmetric}, are not supported as "
            f"{packing!r}: take another variant of the model"
        )
    return found


_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")


def _strategy(given: Options) -> str:
    """What is meant where none is said."""
    group = given.get("group_size")
    return "tensor" if group is None else "channel" if group == -1 else "group"


def _packed(weights: _Weights) -> StoredForm | None:
    by_group = weights.strategy == "group" and weights.group > 0
    if weights.bits not in (4, 8) or not (by_group or weights.strategy == "channel"):
        return None
    group = weights.group if by_group else -1
    return integer_form(weights.bits, group, symmetric=weights.symmetric, in_order=weights.in_order)


def _int8(weights: _Weights) -> StoredForm | None:
    if weights.bits != 8 or not weights.symmetric or not weights.in_order:
        return None
    if weights.strategy == "group":
        return integer_form(8, weights.group, symmetric=True)
    by_row = weights.strategy in ("channel", "tensor")
    return integer_form(8, -1, symmetric=True) if by_row else None


def _fp8(weights: _Weights) -> StoredForm | None:
    if weights.bits != 8 or not weights.symmetric:
        return None
    if weights.strategy == "group":
        return (
            StoredForm(weight_format=FP8_ROWS.weight_format, group=BLOCK, file_bytes=1.03)
            if weights.group % BLOCK == 0
            else None
        )
    return {"block": FP8_BLOCKS, "channel": FP8_ROWS, "tensor": FP8_ROWS}.get(weights.strategy)


def _in_groups_of(bits: int, group: int, form: StoredForm) -> Callable[[_Weights], Any]:
    def found(weights: _Weights) -> StoredForm | None:
        fits = weights.bits == bits and weights.group == group and weights.symmetric
        return form if fits else None

    return found


_FORMATS: dict[str, tuple[str, Callable[[_Weights], StoredForm | None]]] = {
    "pack-quantized": ("int", _packed),
    "int-quantized": ("int", _int8),
    "float-quantized": ("float", _fp8),
    "naive-quantized": ("either", _int8),
    "nvfp4-pack-quantized": ("float", _in_groups_of(4, 16, NVFP4)),
    "mxfp4-pack-quantized": ("float", _in_groups_of(4, 32, MXFP4)),
    "mxfp8-quantized": ("float", _in_groups_of(8, 32, MXFP8)),
}
