"""From `quantization_config` of config.json to what the parts of a model are held in."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.core.published.bitsandbytes import bitsandbytes
from inlay.core.published.compressed import compressed_tensors
from inlay.core.published.integers import auto_round, awq, gptq
from inlay.core.published.modules import FormOf, modules_of
from inlay.core.published.options import Options
from inlay.core.published.small_floats import fbgemm_fp8, fp8, modelopt, mxfp4
from inlay.core.quantization import NEAREST, BlockTypes, Quantization, StoredForm
from inlay.core.weight_format import BLOCK_FORMATS, FORMATS, format_named

_FLOATS = ("float32", "bfloat16")


def read_quantization(config: Mapping[str, Any], shape: ModelShape) -> Quantization | None:
    """What config.json says of its weights; None: they are floats.

    Args:
        shape: what else it says.

    Raises:
        UnsupportedModelError: they are quantised in a way that is not read, or with an option that
            is not known; the message names it.
    """
    given = config.get("quantization_config") or config.get("compression_config")
    if not given:
        return None
    name = given.get("quant_method") if isinstance(given, dict) else None
    if isinstance(given, dict) and name is None and "quant_algo" in given:
        name = "modelopt"
    if name == "gguf":
        return _gguf(given)
    if name not in _METHODS:
        raise UnsupportedModelError(
            f"config.json: weights quantised with {name or given!r} are not supported; supported "
            f"are {', '.join(_METHODS)}, and float weights: take such files of the model, or a "
            "GGUF file"
        )
    try:
        method, form_of = _METHODS[name](Options(given, f"config.json: {name}"))
        return _of_parts(method, form_of, shape)
    except re.error as error:
        raise UnsupportedModelError(
            f"config.json: {name}: {error.pattern!r} is no regular expression ({error})"
        ) from error


def _of_parts(method: str, form_of: FormOf, shape: ModelShape) -> Quantization | None:
    parts = {
        part: _common({form_of(module) for module in modules})
        for part, modules in modules_of(shape).items()
    }
    there = [form for form in parts.values() if form is not None]
    if not there:
        return None
    experts, rest = parts["experts"], parts["rest"]
    if shape.experts and experts is None:
        # What is multiplied most is never held in less than it was published in.
        experts = _common({None, *there})
    most = experts or rest or there[0]
    names = {part: form.weight_format if form else None for part, form in parts.items()}
    return Quantization(
        method=method,
        weight_format=most.weight_format,
        group=max(form.group for form in there),
        rest=names["rest"],
        attention=names["attention"],
        head=names["head"],
        file_bytes=most.file_bytes,
        again=any(form.again for form in there),
    )


def _common(forms: set[StoredForm | None]) -> StoredForm | None:
    """What holds all matrices of a part, some of which may be floats."""
    if len(forms) <= 1:
        return next(iter(forms), None)
    known = [form for form in forms if form is not None]
    names = {form.weight_format for form in known}
    same = len(names) == 1 and None not in forms
    return StoredForm(
        weight_format=names.pop() if same else NEAREST,
        group=max(form.group for form in known),
        file_bytes=max(form.file_bytes for form in known),
        again=not same or any(form.again for form in known),
    )


def _gguf(given: Mapping[str, Any]) -> Quantization:
    # Written by `inlay.models.gguf`, which has looked at the tensors.
    formats = [given.get(part) for part in ("weight_format", "rest", "head")]
    for weight_format in formats:
        if weight_format not in FORMATS:
            raise UnsupportedModelError(
                f"config.json: quant_method 'gguf' names the format {weight_format!r}, which is "
                "not known: name the .gguf file instead of the directory"
            )
    experts, rest, head = map(str, formats)
    blocks = given.get("blocks")
    rest_format, head_format = (None if name in _FLOATS else name for name in (rest, head))
    return Quantization(
        method="gguf",
        weight_format=experts,
        group=32,
        rest=rest_format,
        attention=rest_format,
        head=head_format,
        file_bytes=format_named(experts).bytes_per_weight,
        blocks=_blocks(blocks) if isinstance(blocks, Mapping) else None,
    )


def _blocks(given: Mapping[str, Any]) -> BlockTypes | None:
    """The types that a GGUF file's parts are in; None if no part gains by keeping its type.

    Raises:
        UnsupportedModelError: a part names no format of the kernels, or the size is no number.
    """
    types = {part: given.get(part, "") for part in ("experts", "rest", "head")}
    size_bytes = given.get("file_bytes")
    known = (*FORMATS, *BLOCK_FORMATS)
    if not isinstance(size_bytes, int) or any(one not in known for one in types.values()):
        raise UnsupportedModelError(
            f"config.json: quant_method 'gguf' has types {types} and file_bytes {size_bytes!r}, "
            "not all of which are known: name the .gguf file instead of the directory"
        )
    if not {*BLOCK_FORMATS, "float16"}.intersection(types.values()):
        return None
    return BlockTypes(
        experts=types["experts"], rest=types["rest"], head=types["head"], file_bytes=size_bytes
    )


_METHODS: dict[str, Callable[[Options], tuple[str, FormOf]]] = {
    "fp8": fp8,
    "compressed-tensors": compressed_tensors,
    "mxfp4": mxfp4,
    "awq": awq,
    "gptq": gptq,
    "auto-round": auto_round,
    "intel/auto-round": auto_round,
    "bitsandbytes": bitsandbytes,
    "fbgemm_fp8": fbgemm_fp8,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
}
