"""Integers with scales and zero points: AWQ, GPTQ, and AutoRound, which packs as these two.

Sources: the configurations of AutoAWQ, AutoGPTQ, GPTQModel and AutoRound, and what transformers
and vLLM read of them.
"""

import re
from collections.abc import Mapping
from typing import Any

from inlay.core.published.modules import FormOf, all_names, is_named
from inlay.core.published.options import Options
from inlay.core.quantization import StoredForm, integer_form

# How weights were found, and with which kernels makers compute.
_MAKING = (
    "act_group_aware",
    "amp",
    "autoround_version",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "do_fuse",
    "enable_full_range",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "exllama_config",
    "foem",
    "fuse_max_seq_len",
    "gptaq",
    "gradient_accumulate_steps",
    "hyb_act",
    "iters",
    "low_gpu_mem_usage",
    "lr",
    "max_input_length",
    "meta",
    "method",
    "minmax_lr",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_to_fuse",
    "mse",
    "nsamples",
    "pad_token_id",
    "offload_to_disk",
    "parallel_packing",
    "provider",
    "scale_dtype",
    "seqlen",
    "static_groups",
    "to_quant_block_names",
    "tokenizer",
    "train_bs",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
    "v2",
    "v2_alpha",
)
_HEAD = "lm_head"


def awq(options: Options) -> tuple[str, FormOf]:
    """AWQ, packed as for its `gemm` kernels.

    Raises:
        UnsupportedModelError: another packing, or an option that is not known.
    """
    options.one_of("bits", (4,), options.get("w_bit"))
    for key in ("version", "checkpoint_format", "format"):
        options.one_of(key, ("gemm", "GEMM"), "gemm")
    options.one_of("lm_head", (False,), False)
    group = options.whole("group_size", options.get("q_group_size", 128))
    zero_point = options.one_of("zero_point", (True, False), not options.get("sym", False))
    ignored = options.names("modules_to_not_convert")
    options.one_of("desc_act", (False,), False)
    options.one_of("pack_dtype", ("int32",), "int32")
    options.end(*_MAKING)
    form = integer_form(4, group, symmetric=not zero_point)
    return "awq", lambda module: None if module == _HEAD or is_named(module, ignored) else form


def gptq(options: Options) -> tuple[str, FormOf]:
    """GPTQ, with columns in their order or in that of activations, which files then have too.

    Raises:
        UnsupportedModelError: another packing, or an option that is not known.
    """
    packings = ("gptq", "gptq_v2")
    packing = options.one_of("format", packings, "gptq")
    stored = options.one_of("checkpoint_format", packings, packing)
    _refuse_marlin(options)
    form = _Integers(options).form
    dynamic = options.part("dynamic")
    inside = options.get("modules_in_block_to_quantize")
    parts = _flat(options, inside)
    head = options.one_of("lm_head", (True, False), False)
    options.end(*_MAKING)
    overrides = {key: dynamic.part(key) for key in dynamic.keys()}

    def form_of(module: str) -> StoredForm | None:
        for key, more in overrides.items():
            # As GPTQModel reads them: the first that fits; with a minus it stays as it is.
            expression = key.removeprefix("-:").removeprefix("+:")
            if any(re.match(expression, name) for name in all_names(module)):
                return None if key.startswith("-:") else form(more)
        if module == _HEAD:
            return form(None) if head else None
        return form(None) if not parts or is_named(module, parts) else None

    return stored, form_of


def auto_round(options: Options) -> tuple[str, FormOf]:
    """AutoRound in the packings of GPTQ and AWQ; in its own zero points are as they are.

    Raises:
        UnsupportedModelError: another packing, or an option that is not known.
    """
    packing = options.one_of(
        "packing_format", tuple(_AUTO_ROUND), options.get("backend", "auto_round:auto_gptq")
    )
    options.one_of("data_type", ("int",), "int")
    options.one_of("lm_head", (False,), False)
    for key in ("act_bits", "act_group_size", "act_sym", "act_dynamic", "act_data_type"):
        options.get(key)
    form = _Integers(options).form
    extra = options.part("extra_config")
    options.end(*_MAKING)
    layers = {key: extra.part(key) for key in extra.keys()}

    def form_of(module: str) -> StoredForm | None:
        for key, more in layers.items():
            if any(key == name or re.fullmatch(key, name) for name in all_names(module)):
                bits = more.get("bits")
                return None if isinstance(bits, int) and bits >= 16 else form(more)
        return None if module == _HEAD else form(None)

    return _AUTO_ROUND[packing], form_of


_AUTO_ROUND = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round:auto_awq": "awq",
    "auto_round:awq": "awq",
    "auto_round": "gptq_v2",
    "auto_round:exllamav2": "gptq_v2",
    "auto_round:tritonv2": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
}


class _Integers:
    """Bits, groups and order of a model, where a layer has no others."""

    def __init__(self, options: Options) -> None:
        self._of_all: Mapping[str, Any] = {
            "bits": options.one_of("bits", (2, 3, 4, 8)),
            "group_size": options.whole("group_size", 128),
            "sym": options.one_of("sym", (True, False), True),
            "desc_act": options.one_of("desc_act", (True, False), False),
        }
        options.one_of("pack_dtype", ("int32",), "int32")

    def form(self, more: Options | None) -> StoredForm:
        values = dict(self._of_all)
        if more is not None:
            values["bits"] = more.one_of("bits", (2, 3, 4, 8), values["bits"])
            values["group_size"] = more.whole("group_size", values["group_size"])
            for key in ("sym", "desc_act"):
                values[key] = more.one_of(key, (True, False), values[key])
            more.one_of("data_type", ("int",), "int")
            more.end(*_MAKING, "act_bits", "act_data_type", "act_dynamic", "act_sym")
        group = values["group_size"]
        return integer_form(
            values["bits"],
            group,
            symmetric=values["sym"],
            in_order=not values["desc_act"] or group == -1,
        )


def _refuse_marlin(options: Options) -> None:
    if options.get("is_marlin_format", False):
        raise options.refused("is_marlin_format", True, "the format of GPTQ itself")


def _flat(options: Options, inside: Any) -> tuple[str, ...]:
    """The names in a list of lists."""
    if inside is None:
        return ()
    lists = inside if isinstance(inside, list) else [inside]
    names = [name for one in lists for name in (one if isinstance(one, list) else [one])]
    if not all(isinstance(name, str) for name in names):
        raise options.refused("modules_in_block_to_quantize", inside, "lists of names")
    return tuple(names)
