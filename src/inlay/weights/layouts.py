"""Tensor-parallel layouts as wants: which box of each tensor a rank has."""

import re
from collections.abc import Mapping

from inlay.core.errors import WeightsMismatchError
from inlay.weights.boxes import Box
from inlay.weights.manifest import Manifest
from inlay.weights.parts_landing import Want, Wants

DECODER_AXES = {
    r"(embed_tokens|lm_head)\.weight$": 0,
    r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj)\.(weight|bias)$": 0,
    r"\.(o_proj|down_proj)\.weight$": 1,
}
"""Of decoders as Hugging Face names them: rows of what makes heads and widths, columns of what
takes them; all else is on every rank."""


def tensor_parallel(
    rank: int, degree: int, *, axes: Mapping[str, int] | None = None, dtype: str = ""
) -> Wants:
    """What one rank of several has.

    Args:
        axes: along which axis tensors are divided whose names a regular expression matches
            (`re.search`); the first that does counts; all other tensors are whole. By default
            `DECODER_AXES`.
        dtype: of all floats; empty: as they are published.

    Raises (when the manifest is known):
        WeightsMismatchError: an axis does not divide by the degree.
    """
    if not 0 <= rank < degree:
        raise WeightsMismatchError(f"rank {rank} of {degree}: ranks are 0 to {degree - 1}")
    rules = [(re.compile(form), axis) for form, axis in (axes or DECODER_AXES).items()]

    def wants(manifest: Manifest) -> dict[str, Want]:
        found = {}
        for name, parts in manifest.by_name.items():
            own, shape = parts[0].dtype, parts[0].whole_shape
            if not own:
                continue
            axis = next((axis for form, axis in rules if form.search(name)), None)
            box = None
            if axis is not None and degree > 1:
                box = _share(name, shape, axis, rank, degree)
            is_float = own in ("BF16", "F16", "F32", "F64")
            found[name] = Want(box=box, dtype=dtype if is_float else "")
        return found

    return wants


def _share(name: str, shape: tuple[int, ...], axis: int, rank: int, degree: int) -> Box:
    if axis >= len(shape) or shape[axis] % degree:
        raise WeightsMismatchError(
            f"{name} {list(shape)} does not divide by {degree} along axis {axis}"
        )
    part = shape[axis] // degree
    corner = [0] * len(shape)
    corner[axis] = rank * part
    return Box(tuple(corner), (*shape[:axis], part, *shape[axis + 1 :]))
