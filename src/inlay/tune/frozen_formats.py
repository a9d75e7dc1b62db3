"""In what a run holds and multiplies its frozen weights. Loads no torch."""

from inlay.core.model_shape import ModelShape
from inlay.models.formats import full_name
from inlay.tune.config import TuneConfig


def product_dtype(config: TuneConfig) -> str:
    """Of matrices besides routed experts, and of what is multiplied with any."""
    return "bfloat16" if config.bf16 or config.pure_bf16 else "float32"


def held_format(shape: ModelShape, wanted: str, products: str) -> str:
    """Weight format of routed experts; `auto` is what the files hold if they are quantised, else
    the dtype of products.
    """
    if wanted == "auto":
        stored = shape.quantization
        return stored.weight_format if stored else products
    return full_name(wanted)
