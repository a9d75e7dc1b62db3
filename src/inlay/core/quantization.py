"""How published checkpoints hold quantised weights: `quantization_config` of config.json.

Three ways are read: fp8 with a scale per block of 128 x 128 (DeepSeek), compressed-tensors with 4
bits (Kimi-K2), and mxfp4 experts (gpt-oss).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inlay.core.errors import UnsupportedModelError
from inlay.core.weight_format import FORMATS

_FP8_BLOCK = 128
_FLOATS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What the files of a model hold.

    Attributes:
        method: as config.json names it.
        weight_format: of the kernels, which holds such weights as they are.
        group: weights of a row that share a scale.
        rest: the same for matrices besides routed experts; None: they are floats.
        head: the same for the output matrix.
    """

    method: str
    weight_format: str
    group: int
    rest: str | None = None
    head: str | None = None


def read_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """What config.json says of its weights; None: they are floats.

    Raises:
        UnsupportedModelError: they are quantised in a way that is not read; the message says which
            ways are.
    """
    given = config.get("quantization_config") or config.get("compression_config")
    if not given:
        return None
    method = given.get("quant_method") if isinstance(given, dict) else None
    if method not in _METHODS:
        raise UnsupportedModelError(
            f"config.json: weights quantised with {method or given!r} are not supported; supported "
            f"are {', '.join(_METHODS)}, and float weights: take another variant of the model, or "
            "add the method to inlay/core/quantization.py and inlay/models/quantized.py"
        )
    return _METHODS[method](given)


def _fp8(given: Mapping[str, Any]) -> Quantization:
    block, form = given.get("weight_block_size"), given.get("fmt", "e4m3")
    if block != [_FP8_BLOCK, _FP8_BLOCK] or form != "e4m3":
        raise UnsupportedModelError(
            f"config.json: fp8 weights as {form} with blocks of {block} are not supported; "
            f"supported is e4m3 with blocks of [{_FP8_BLOCK}, {_FP8_BLOCK}]"
        )
    name = f"fp8:g{_FP8_BLOCK}"
    return Quantization(method="fp8", weight_format=name, group=_FP8_BLOCK, rest=name)


def _compressed_tensors(given: Mapping[str, Any]) -> Quantization:
    groups = given.get("config_groups")
    weights = [
        group.get("weights") or {}
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict)
    ]
    found = weights[0] if len(weights) == 1 else {}
    size = found.get("group_size")
    wanted = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
    differs = {key: found.get(key) for key, value in wanted.items() if found.get(key) != value}
    if differs or size not in (32, 64, 128) or given.get("format") != "pack-quantized":
        raise UnsupportedModelError(
            f"config.json: compressed-tensors weights as {given.get('format')!r} with {weights} "
            "are not supported; supported is 'pack-quantized' with one group of symmetric integers "
            "of 4 bits, a scale for each 32, 64 or 128 of a row"
        )
    return Quantization(method="compressed-tensors", weight_format=f"int4:g{size}", group=size)


def _mxfp4(given: Mapping[str, Any]) -> Quantization:
    return Quantization(method="mxfp4", weight_format="mxfp4", group=32)


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
    rest_format, head_format = (None if name in _FLOATS else name for name in (rest, head))
    return Quantization(
        method="gguf", weight_format=experts, group=32, rest=rest_format, head=head_format
    )


_METHODS: dict[str, Callable[[Mapping[str, Any]], Quantization]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "mxfp4": _mxfp4,
    "gguf": _gguf,
}
