"""bitsandbytes: codes of 4 bits in blocks that know no rows, and int8 by rows.

Source: the tensors that its `QuantState` and `Int8Params` leave in safetensors.
"""

import json
from typing import Any

import numpy as np

from inlay.core.errors import ModelFileError
from inlay.models.float_arrays import Array, to_float32
from inlay.models.published.layout import Layout, Parts
from inlay.models.published.rows import Matrix, QuantizedRows, in_turn
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
        state = json.loads(parts.get(name).tobytes())
    except ValueError as error:
        raise ModelFileError(f"{parts.named(name)} is not JSON: download it again") from error
    if not isinstance(state, dict):
        raise ModelFileError(f"{parts.named(name)} is not an object: download it again")
    return state


def _scales(parts: Parts, state: dict[str, Any]) -> Array:
    """Of all blocks, in float32; they may be quantised themselves, by larger blocks."""
    absmax = parts.get(_ABSMAX)
    if not parts.has(_NESTED_ABSMAX):
        return to_float32(absmax)
    values = parts.get(_NESTED_MAP)[absmax]
    of_block = np.repeat(parts.get(_NESTED_ABSMAX), state["nested_blocksize"])
    scales: Array = values * of_block[: len(values)] + np.float32(state["nested_offset"])
    return scales


def _4_bit_rows(parts: Parts, rows: slice) -> Matrix:
    state = _state(parts)
    columns, block = state["shape"][1], state["blocksize"]
    first, last = rows.start * columns, rows.stop * columns
    # Bytes and blocks may begin within a row before.
    packed = parts.get("{name}", slice(first // 2, -(-last // 2))).flatten()
    # The first of two codes is the high one.
    codes = in_turn(packed >> 4, packed & 15)[first % 2 :][: last - first]
    scales = np.repeat(_scales(parts, state)[first // block : -(-last // block)], block)
    values: Array = parts.get(_MAP)[codes] * scales[first % block :][: last - first]
    return values.reshape(-1, columns)


def _8_bit_tensors(parts: Parts, matrix: Expected) -> tuple[Expected, ...]:
    return matrix, Expected(parts.named("{module}.SCB"), (matrix.shape[0],))


def _8_bit_rows(parts: Parts, rows: slice) -> Matrix:
    codes = parts.get("{name}", rows)
    # In float64, because the weights are no products with one float32.
    scales = parts.get("{module}.SCB", rows).astype(np.float64)[:, None] * _STEP
    return QuantizedRows("int8", codes, scales, codes.shape[1], codes.shape[1])


FOUR_BITS = Layout(
    codes="{name}",
    scales=_ABSMAX,
    dtypes=(np.dtype(np.uint8),),
    tensors=_4_bit_tensors,
    read=_4_bit_rows,
    count_rows=lambda parts: int(_state(parts)["shape"][0]),
)
EIGHT_BITS = Layout(
    codes="{name}",
    scales="{module}.SCB",
    dtypes=(np.dtype(np.int8),),
    tensors=_8_bit_tensors,
    read=_8_bit_rows,
    aside=("{module}.weight_format",),
)
