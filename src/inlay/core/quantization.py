"""What the files of a quantised model hold, in words of the kernels' weight formats.

`inlay.core.published` reads it from config.json.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BlockTypes:
    """The types of a GGUF file, by the names of the kernels' formats: for each part, the type of
    most of its weights.

    Attributes:
        experts: of routed experts; where there are none, of all matrices.
        rest: of all matrices that are no routed experts'.
        head: of the output matrix.
        file_bytes: size of all matrices in the file; the embedding counts only where it is the
            output matrix, too.
    """

    experts: str
    rest: str
    head: str
    file_bytes: int


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What the files of a model hold.

    Attributes:
        method: how they name and pack it, of `inlay.models.published.layouts`.
        weight_format: of the kernels, which holds such weights as they are, or nearly.
        group: weights of a row that share a scale; 1: no part of a row is bound to another.
        rest: the same for dense MLPs and shared experts; None: they are floats.
        attention: the same for the matrices of attention.
        head: the same for the output matrix.
        file_bytes: of a quantised weight in the files, scales included, about.
        again: some become floats first, because no format of the kernels has such codes.
        blocks: of GGUF files whose matrices a CPU's kernels hold as they are, each in its own type.
    """

    method: str
    weight_format: str
    group: int
    rest: str | None = None
    attention: str | None = None
    head: str | None = None
    file_bytes: float
    again: bool = False
    blocks: BlockTypes | None = None


@dataclass(frozen=True, kw_only=True)
class StoredForm:
    """How files hold a matrix.

    Attributes:
        weight_format: of the kernels, which holds it best at the least size.
        group: weights of a row that share a scale in the files; 1: the whole row has one.
        file_bytes: of a weight, scales included.
        again: its weights become floats and are quantised again for that format.
    """

    weight_format: str
    group: int
    file_bytes: float
    again: bool = False


NEAREST = "int8:g32"
"""What holds any floats nearly, for a byte a weight."""

_WHOLE_ROW_BYTES = 2**-12


def integer_form(bits: int, group: int, *, symmetric: bool, in_order: bool = True) -> StoredForm:
    """Where integers of 2, 3, 4 or 8 bits go.

    Args:
        group: columns that share a scale; -1: all of a row.
        symmetric: zero is the middle of their range.
        in_order: columns of a group are neighbours.
    """
    whole = group == -1
    scale_bytes = 2 + (0 if symmetric else bits / 8)
    file_bytes = bits / 8 + (_WHOLE_ROW_BYTES if whole else scale_bytes / group)
    name = ""
    if in_order and bits == 8 and symmetric and (whole or group % 32 == 0):
        name = "int8" if whole else "int8:g32"
    elif in_order and bits <= 4 and symmetric:
        fitting = (g for g in (128, 64, 32) if whole or group % g == 0)
        name = next((f"int4:g{g}" for g in fitting), "")
    elif in_order and bits <= 4 and (whole or group % 32 == 0):
        name = "uint4:g32"
    return StoredForm(
        weight_format=name or NEAREST,
        group=group if in_order and group > 0 else 1,
        file_bytes=file_bytes,
        again=not name,
    )
