"""Floats of 8 and 4 bits: fp8 and mxfp4 as model makers have them, and what ModelOpt writes.

Sources: the configurations of DeepSeek, transformers, AutoFP8, FBGEMM and ModelOpt.
"""

from inlay.core.published.modules import FormOf, is_named
from inlay.core.published.options import Options
from inlay.core.quantization import NEAREST, StoredForm

BLOCK = 128
FP8 = "fp8:g128"

FP8_BLOCKS = StoredForm(weight_format=FP8, group=BLOCK, file_bytes=1.0)
FP8_ROWS = StoredForm(weight_format=FP8, group=1, file_bytes=1.0)
MXFP8 = StoredForm(weight_format=FP8, group=32, file_bytes=1 + 1 / 32)
MXFP4 = StoredForm(weight_format="mxfp4", group=32, file_bytes=0.5 + 1 / 32)
NVFP4 = StoredForm(weight_format=NEAREST, group=1, file_bytes=0.5 + 1 / 16, again=True)

_SCALES = ("activation_scale_ub", "activation_scheme", "scale_fmt")
_HEAD = "lm_head"


def fp8(options: Options) -> tuple[str, FormOf]:
    """e4m3 with a scale per block of 128 x 128, per row, or per matrix.

    Raises:
        UnsupportedModelError: another kind of float or of blocks, or an option that is not known.
    """
    options.one_of("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    block = options.get("weight_block_size")
    if block is not None:
        options.one_of("weight_block_size", ([BLOCK, BLOCK],))
    options.one_of("expert_dtype", ("fp8",), "fp8")
    ignored = options.names("modules_to_not_convert") + options.names("ignored_layers")
    options.end(*_SCALES, "activation_scheme", "dequantize", "kv_cache_scheme")
    form = FP8_BLOCKS if block else FP8_ROWS
    return "fp8", lambda module: None if module == _HEAD or is_named(module, ignored) else form


def fbgemm_fp8(options: Options) -> tuple[str, FormOf]:
    """e4m3 with a scale per row. Raises UnsupportedModelError for options that are not known."""
    ignored = options.names("modules_to_not_convert")
    options.end(*_SCALES)
    return "fp8", lambda module: None if module == _HEAD or is_named(module, ignored) else FP8_ROWS


def mxfp4(options: Options) -> tuple[str, FormOf]:
    """The experts of gpt-oss. Raises UnsupportedModelError for options that are not known."""
    options.names("modules_to_not_convert")  # all but the experts
    options.end("dequantize")
    return "mxfp4", lambda module: MXFP4 if ".experts" in module else None


_ALGORITHMS = {
    "FP8": FP8_ROWS,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_ROWS,
    "MXFP8": MXFP8,
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
}
# How much of them is known without the algorithm's name, and how caches are to be held.
_OF_MODELOPT = (
    "config_groups",
    "has_zero_point",
    "input_activations",
    "kv_cache_quant_algo",
    "kv_cache_scheme",
    "pre_quant_scale",
    "producer",
    "weights",
)


def modelopt(options: Options) -> tuple[str, FormOf]:
    """What ModelOpt exports, one algorithm for all matrices or one by name for each.

    Raises:
        UnsupportedModelError: another algorithm, or an option that is not known.
    """
    if options.get("quantization") is not None:
        nested = options.part("quantization")  # as `hf_quant_config.json` has it
        options.end("producer")
        options = nested
    algorithm = options.one_of("quant_algo", (*_ALGORITHMS, "MIXED_PRECISION"))
    ignored = options.names("ignore") + options.names("exclude_modules")
    options.one_of("group_size", (16, 32), 32 if algorithm == "MXFP8" else 16)
    by_name = options.part("quantized_layers")
    if options.get("pre_quant_scale", False):
        raise options.refused("pre_quant_scale", True, "weights that are not scaled before")
    options.end(*_OF_MODELOPT)
    layers = {}
    for name in by_name.keys():
        layer = by_name.part(name)
        layers[name] = _ALGORITHMS[layer.one_of("quant_algo", tuple(_ALGORITHMS))]
        layer.one_of("group_size", (16, 32), 16)
        layer.end()
    if algorithm == "MIXED_PRECISION":
        return "modelopt", layers.get
    form = _ALGORITHMS[algorithm]
    return "modelopt", lambda module: None if is_named(module, ignored) else form
