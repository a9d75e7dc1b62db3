"""bitsandbytes: codes of 4 bits in blocks that know no rows, and int8 by rows.

Source: the tensors that its `QuantState` and `Int8Params` leave in safetensors.
"""

import json
from typing import Any

import torch
from torch import Tensor

from inlay.core.errors import ModelFileError
from inlay.models.published.layout import Layout, Parts
from inlay.models.published.rows import Matrix, QuantizedRows
from inlay.models.weight_names import Expected

_KINDS = ("{name}.quant_state.bitsandbytes__nf4", "{name}.quant_state.bitsandbytes__fp4")
_ABSMAX, _MAP = "{name}.absmax", "{name}.quant_map"
_NESTED_ABSMAX, _NESTED_MAP = "{name}.nested_absmax", "{name}.nested_quant_map"
# Of a row's largest weight, by which its integers are multiplied.
_STEP = 1 / 127


def _4_bit_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    rows, columns = matrix.shape
    state = next(parts.there(_KINDS), None)
    block = 64 if state is None else _state(parts)["blocksize"]
    return (
        Expected(parts.named("{name}"), (rows * columns // 2, 1)),
        Expected(parts.named(_ABSMAX), (-(-rows * columns // block),)),
        Expected(parts.named(_MAP), (16,)),
        state or Expected(parts.named(_KINDS[0]), ()),
        *parts.there((_NESTED_ABSMAX, _NESTED_MAP)),
    )


def _state(parts: Parts) -> dict[str, Any]:
    """What is said of a matrix in JSON."""
    name = next(one for one in _KINDS if parts.has(one))
    try:
        state = json.loads(bytes(parts.get(name).tolist()))
    except ValueError as error:
        raise ModelFileError(f"{parts.named(name)} is not JSON: download it again") from error
    if not isinstance(state, dict):
        raise ModelFileError(f"{parts.named(name)} is not an object: download it again")
    return state


def _scales(parts: Parts, state: dict[str, Any]) -> Tensor:
    """Of all blocks, in float32; they may be quantised themselves, by larger blocks."""
    absmax = parts.get(_ABSMAX)
    if not parts.has(_NESTED_ABSMAX):
        return absmax.float()
    values = parts.get(_NESTED_MAP)[absmax.int()]
    of_block = parts.get(_NESTED_ABSMAX).repeat_interleave(state["nested_blocksize"])
    scales: Tensor = values * of_block[: len(values)] + state["nested_offset"]
    return scales


def _4_bit_rows(parts: Parts, rows: slice) -> Matrix:
    state = _state(parts)
    columns, block = state["shape"][1], state["blocksize"]
    first, last = rows.start * columns, rows.stop * columns
    # Bytes and blocks may begin within a row before.
    packed = parts.get("{name}", slice(first // 2, -(-last // 2))).flatten()
    # The first of two codes is the high one.
    codes = torch.stack((packed >> 4, packed & 15), dim=-1).flatten().int()
    codes = codes[first % 2 :][: last - first]
    scales = _scales(parts, state)[first // block : -(-last // block)].repeat_interleave(block)
    values = parts.get(_MAP)[codes] * scales[first % block :][: last - first]
    return values.view(-1, columns)


def _8_bit_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    return matrix, Expected(parts.named("{module}.SCB"), (matrix.shape[0],))


def _8_bit_rows(parts: Parts, rows: slice) -> Matrix:
    codes = parts.get("{name}", rows)
    # In float64, because the weights are no products with one float32.
    scales = parts.get("{module}.SCB", rows).double()[:, None] * _STEP
    return QuantizedRows("int8", codes, scales, codes.shape[1], codes.shape[1])


FOUR_BITS = Layout(
    codes="{name}",
    scales=_ABSMAX,
    dtypes=(torch.uint8,),
    tensors=_4_bit_tensors,
    read=_4_bit_rows,
    count_rows=lambda parts: int(_state(parts)["shape"][0]),
)
EIGHT_BITS = Layout(
    codes="{name}",
    scales="{module}.SCB",
    dtypes=(torch.int8,),
    tensors=_8_bit_tensors,
    read=_8_bit_rows,
    aside=("{module}.weight_format",),
)
