"""Which ways of packing each method has; of those with the same names the first that fits is it."""

from inlay.models.published import bitsandbytes, integers, small_floats
from inlay.models.published.layout import Layout

LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "fp8": (
        small_floats.FP8_BLOCKS_INVERSE,
        small_floats.FP8_ROWS_INVERSE,
        small_floats.FP8_BLOCKS,
        small_floats.FP8_ROWS,
    ),
    "compressed-tensors": (
        integers.PACKED_4_BITS,
        integers.PACKED,
        small_floats.NVFP4,
        small_floats.MXFP4,
        small_floats.MXFP8,
        small_floats.FP8_BLOCKS,
        small_floats.FP8_ROWS,
        integers.INT8,
    ),
    "mxfp4": (small_floats.STACKED_MXFP4,),
    "awq": (integers.AWQ,),
    "gptq": (integers.GPTQ,),
    "gptq_v2": (integers.GPTQ_V2,),
    "bitsandbytes": (bitsandbytes.FOUR_BITS, bitsandbytes.EIGHT_BITS),
    "modelopt": (
        small_floats.NVFP4_OF_MODELOPT,
        small_floats.MXFP8,
        small_floats.FP8_ROWS,
    ),
}
