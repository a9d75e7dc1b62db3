"""Weight formats: their names, what a weight costs in each, and which part of a model gets which.

Knows no files and no kernels, and loads no torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.core.units import format_bytes
from inlay.core.weight_format import FORMATS, MAX_WHOLE_ROW, format_named

# Those of the CPU kernels, and what only a CUDA backend holds.
BYTES_PER_WEIGHT = {name: format_named(name).bytes_per_weight for name in FORMATS} | {
    "float16": 2.0
}
FLOAT_FORMATS = ("float32", "bfloat16", "float16")
_ALIASES = {"int4": "int4:g32"}

# What a user may ask for; float16 is read, but held only by explicit choice of a CUDA backend.
WEIGHT_FORMATS = ("auto", *BYTES_PER_WEIGHT, *_ALIASES)


def full_name(weight_format: str) -> str:
    """The format that an alias stands for; other names as they are."""
    return _ALIASES.get(weight_format, weight_format)


@dataclass(frozen=True)
class PartFormats:
    """Formats of a model's matrices.

    Attributes:
        experts: those that are routed to.
        mlp: shared experts, and dense MLPs.
        attention: q, k, v and output.
        latent: what latent attention has for each head.
        router: the gate in front of the experts.
        head: the output matrix.
    """

    experts: str
    mlp: str
    attention: str
    latent: str
    router: str
    head: str


def part_formats(shape: ModelShape, weight_format: str, float_dtype: str) -> PartFormats:
    """Which part is held how, when a user asks for `weight_format`.

    4 bits are for the many weights of experts and MLPs; attention and head, few and more sensitive,
    are int8 then. A router decides, and is small: integers are not worth a wrong decision. What
    files hold in the format already stays as it is, and the rest stays floats.

    Args:
        float_dtype: dtype of the floats that are kept as they are.
    """
    is_float = weight_format in FLOAT_FORMATS
    router = weight_format if is_float else float_dtype
    if shape.router.exact:
        router = "float32"
    stored = shape.quantization
    if stored is not None and weight_format == stored.weight_format:
        other = float_dtype if stored.experts_only else weight_format
        return PartFormats(
            experts=weight_format,
            mlp=other,
            attention=other,
            latent=float_dtype,  # transposed, codes and scales would not fit each other
            router=router,
            head=float_dtype,
        )
    has_4_bits = weight_format == "mxfp4" or weight_format.startswith("int4")
    other = "int8" if has_4_bits else weight_format
    return PartFormats(
        experts=weight_format,
        mlp=weight_format,
        attention=other,
        latent=other,
        router=router,
        head=other,
    )


def check_row_lengths(shape: ModelShape, formats: PartFormats) -> None:
    """Raise UnsupportedModelError where rows are too long for the sums of `int8`."""
    lengths = {
        "attention": (formats.attention, max(shape.hidden, shape.heads * shape.head_dim)),
        "MLPs": (formats.mlp, max(shape.hidden, shape.intermediate, shape.shared_intermediate)),
        "experts": (formats.experts, max(shape.hidden, shape.moe_intermediate)),
        "output matrix": (formats.head, shape.hidden),
    }
    for part, (weight_format, length) in lengths.items():
        if weight_format == "int8" and length > MAX_WHOLE_ROW:
            raise UnsupportedModelError(
                f"weight_format 'int8' sums rows of at most {MAX_WHOLE_ROW} values, those of the "
                f"{part} have {length}: use 'int8:g32'"
            )


def packed_bytes(shape: ModelShape, weight_format: str, float_dtype: str = "bfloat16") -> int:
    """Memory that the packed weights take; the mapped embedding is not part of it."""
    formats = part_formats(shape, full_name(weight_format), float_dtype)
    sparse = len(shape.sparse_layers)
    mlp = sparse * shape.shared_parameters + (shape.layers - sparse) * shape.mlp_parameters
    parts = (  # norms and biases, a thousandth of all, are left out
        (formats.experts, sparse * shape.experts * shape.expert_parameters),
        (formats.mlp, mlp),
        (formats.attention, shape.layers * shape.attention_parameters),
        (formats.router, sparse * shape.experts * shape.hidden),
        (formats.head, shape.vocab * shape.hidden),
    )
    return int(sum(count * BYTES_PER_WEIGHT[part] for part, count in parts))


def format_that_fits(shape: ModelShape, room_bytes: int, formats: Iterable[str] = FORMATS) -> str:
    """What to say where a model is too large: the weight format to try, and what it needs.

    Args:
        formats: those that the backend has; the one of most bits that fits is named.
    """
    sizes = {name: packed_bytes(shape, name) for name in formats}
    fitting = [name for name, size in sizes.items() if size <= room_bytes]
    if fitting:
        best = max(fitting, key=sizes.__getitem__)
        return f"weight_format {best} would need {format_bytes(sizes[best])}"
    least = min(sizes, key=sizes.__getitem__)
    return (
        f"even weight_format {least} would need {format_bytes(sizes[least])}: take a smaller model"
    )


def held_bytes(shape: ModelShape, weight_format: str, file_bytes: int) -> int:
    """Memory for the weights of files of that size; `auto` keeps what the files have."""
    return file_bytes if weight_format == "auto" else packed_bytes(shape, weight_format)
