"""bitsandbytes: nf4 and fp4 by blocks of 64, and int8 by rows.

Source: the configuration that transformers writes.
"""

from inlay.core.errors import UnsupportedModelError
from inlay.core.published.modules import FormOf, is_named
from inlay.core.published.options import Options
from inlay.core.quantization import NEAREST, StoredForm

_COMPUTING = (
    "_load_in_4bit",
    "_load_in_8bit",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_use_double_quant",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_threshold",
)
# With and without quantised scales; files say which.
_4_BITS = StoredForm(weight_format=NEAREST, group=1, file_bytes=0.53, again=True)
_8_BITS = StoredForm(weight_format="int8", group=1, file_bytes=1.0)


def bitsandbytes(options: Options) -> tuple[str, FormOf]:
    """Raise UnsupportedModelError for options that are not known, or weights of neither kind."""
    four = options.one_of("load_in_4bit", (True, False), False)
    eight = options.one_of("load_in_8bit", (True, False), False)
    if four == eight:
        raise UnsupportedModelError(
            f"{options.where}: load_in_4bit {four} and load_in_8bit {eight} are not supported; "
            "supported is one of the two"
        )
    options.one_of("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
    options.one_of("bnb_4bit_quant_storage", ("uint8",), "uint8")
    skipped = options.names("llm_int8_skip_modules") or ("lm_head",)
    options.end(*_COMPUTING)
    form = _4_BITS if four else _8_BITS
    return "bitsandbytes", lambda module: None if is_named(module, skipped) else form
