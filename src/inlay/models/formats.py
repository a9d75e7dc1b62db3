"""Weight formats: their names, what a weight costs in each, and which part of a model gets which.

Knows no files and no kernels, and loads no torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.core.quantization import BlockTypes
from inlay.core.roofline import Formats, bytes_per_weight, parts_of
from inlay.core.units import format_bytes
from inlay.core.weight_format import FORMATS, MAX_WHOLE_ROW, format_named

BYTES_PER_WEIGHT = {name: bytes_per_weight(name) for name in FORMATS}
FLOAT_FORMATS = ("float32", "bfloat16", "float16")
_ALIASES = {"int4": "int4:g32", "bf16": "bfloat16"}

# What a user may ask for.
WEIGHT_FORMATS = ("auto", *BYTES_PER_WEIGHT, *_ALIASES)
_AND = "+"


def is_weight_format(name: str) -> bool:
    """Whether it is one of `WEIGHT_FORMATS`, or two of them: `int4:g32+bfloat16`."""
    experts, is_two, rest = name.partition(_AND)
    return experts in WEIGHT_FORMATS and (
        not is_two or ("auto" not in (experts, rest) and rest in WEIGHT_FORMATS)
    )


def full_name(weight_format: str) -> str:
    """What aliases stand for; other names as they are."""
    names = [_ALIASES.get(name, name) for name in weight_format.split(_AND)]
    same_floats = len(set(names)) == 1 and names[0] in FLOAT_FORMATS
    return names[0] if same_floats else _AND.join(names)


def halves(weight_format: str) -> tuple[str, str]:
    """The formats of routed experts and of the rest, which one name may give apart."""
    experts, _, rest = weight_format.partition(_AND)
    return experts, rest or experts


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
        weight_format: a full name. `EXPERTS+REST` is taken at its word: the rest has no part that
            is held otherwise but the router.
        float_dtype: dtype of the floats that are kept as they are.
    """
    experts, rest = halves(weight_format)
    is_float = rest in FLOAT_FORMATS
    router = rest if is_float else float_dtype
    if shape.router.exact:
        router = "float32"
    if _AND in weight_format:
        return PartFormats(
            experts=experts, mlp=rest, attention=rest, latent=rest, router=router, head=rest
        )
    stored = shape.quantization
    if stored is not None and weight_format == stored.weight_format:
        # Transposed, codes and scales would not fit each other; GGUF files have them apart.
        latent = "int8:g32" if stored.method == "gguf" and stored.rest else float_dtype
        return PartFormats(
            experts=weight_format,
            mlp=stored.rest or float_dtype,
            attention=stored.attention or float_dtype,
            latent=latent,
            router=router,
            head=stored.head or float_dtype,
        )
    name = full_name(weight_format)
    has_4_bits = name in FORMATS and format_named(name).bits == 4
    other = "int8" if has_4_bits else weight_format
    return PartFormats(
        experts=weight_format,
        mlp=weight_format,
        attention=other,
        latent=other,
        router=router,
        head=other,
    )


def block_formats(blocks: BlockTypes) -> PartFormats:
    """Formats of a GGUF file's parts when every matrix keeps its own type: for each part, the type
    of most of its weights.
    """
    return PartFormats(
        experts=blocks.experts,
        mlp=blocks.rest,
        attention=blocks.rest,
        latent=blocks.rest if blocks.rest in FLOAT_FORMATS else "int8:g32",
        router="float32",
        head=blocks.head,
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


def stored_bytes(shape: ModelShape, float_dtype: str) -> tuple[float, float, float, float]:
    """What a weight takes in the files, about: of routed experts, of other MLPs, of attention, and
    of the output matrix.
    """
    stored, floats = shape.quantization, BYTES_PER_WEIGHT[float_dtype]
    if stored is None:
        return floats, floats, floats, floats

    def of(held: str | None) -> float:
        if held is None:
            return floats
        return stored.file_bytes if held == stored.weight_format else BYTES_PER_WEIGHT[held]

    return of(stored.weight_format), of(stored.rest), of(stored.attention), of(stored.head)


def file_bytes(shape: ModelShape) -> int:
    """What the published tensors take, about, from config.json alone."""
    dtype = shape.dtype if shape.dtype in FLOAT_FORMATS else "bfloat16"
    experts, rest, attention, head = stored_bytes(shape, dtype)
    of_part = {
        "attention projections": attention,
        "latent projections": attention,
        "dense MLPs": rest,
        "shared experts": rest,
        "routed experts": experts,
        "output matrix": head,
    }
    formats = Formats(
        experts=dtype, mlp=dtype, attention=dtype, router=dtype, head=dtype, embedding=dtype
    )
    parts = (part for part in parts_of(shape, formats) if part.name != "attention core")
    return int(
        sum(part.elements * of_part.get(part.name, BYTES_PER_WEIGHT[part.format]) for part in parts)
    )


def packed_bytes(shape: ModelShape, weight_format: str, float_dtype: str = "bfloat16") -> int:
    """Memory that packed matrices take; norms, and the embedding, which is mapped, are left out."""
    held = part_formats(shape, full_name(weight_format), float_dtype)
    parts = parts_of(shape, Formats(**vars(held)))
    packed = (part for part in parts if part.name not in ("attention core", "embedding", "norms"))
    return int(sum(part.stored_bytes for part in packed))


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


def held_bytes(shape: ModelShape, weight_format: str | None, file_bytes: int) -> int:
    """Memory for the weights of files of that size; `auto` keeps what the files have, None none."""
    if weight_format is None:
        return 0
    return file_bytes if weight_format == "auto" else packed_bytes(shape, weight_format)
