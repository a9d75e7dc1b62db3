"""Rows times a panel: the loop that dense layers and experts share.

Many rows go through tensor cores, weights made bfloat16 in registers. One row alone is multiplied
in float32 as words are taken apart, and a word's sum is scaled at once: fewer instructions for each
weight, which is what a fast GPU is short of then, and more exact.

Shapes: T rows, N = 64 columns, K of a block, W words of it in a column, S steps of a word.
"""

import triton
import triton.language as tl
from torch import Tensor


def operand_of(x: Tensor) -> tl.dtype:
    """What matrices are multiplied in: bfloat16, or float32 in the interpreter, which multiplies
    the bits of bfloat16 as integers (Triton 3.7).
    """
    return tl.bfloat16 if x.is_cuda else tl.float32


@triton.jit
def scales_of(stored, CODES: tl.constexpr):
    """float32 scales, and zero points, of what is stored for them."""
    zero = tl.full(stored.shape, CODES.bias, tl.float32)
    if CODES.scale == "e8m0":
        # 2^-127, the least of them, is subnormal.
        scale = tl.maximum(stored.to(tl.int32) << 23, 0x400000).to(tl.float32, bitcast=True)
    elif CODES.scale == "bf16 and zero":
        scale = (stored & -65536).to(tl.float32, bitcast=True)
        zero = ((stored << 16) >> 16).to(tl.float32) * (1.0 / 256)
    else:
        scale = stored.to(tl.float32)
    return scale, zero


@triton.jit
def first_bit(step, CODES: tl.constexpr):
    """Where the code of a step begins in its word."""
    return (step // CODES.lanes) * CODES.down + (step % CODES.lanes) * CODES.across


@triton.jit
def numbers_of(words, shift, CODES: tl.constexpr):
    """float32 numbers of the codes that begin at a bit of their words; integers with their bias,
    small floats still to be multiplied by their power of two.
    """
    code = (words >> shift) & ((1 << CODES.bits) - 1)
    if CODES.number == "integer":
        number = code.to(tl.float32)
    elif CODES.number == "bfloat16":
        number = (code << 16).to(tl.float32, bitcast=True)
    else:
        sign: tl.constexpr = 1 << (CODES.bits - 1)
        half = (code & sign) << (16 - CODES.bits) | (code & (sign - 1)) << (10 - CODES.mantissa)
        number = half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return number


@triton.jit
def panel_product(
    row,
    present,
    size_k,
    words,
    scales,
    first,
    end,
    column_words,
    CODES: tl.constexpr,
    OPERAND: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Sums `[BLOCK_T, 64]` over blocks of K from `first` to `end`.

    Args:
        row, present: pointers to rows of x `[BLOCK_T]`, and which of them are some.
        size_k: K of all of a row.
        words, scales: pointers to the panel's first word and scale.
        column_words: W of all of a column.
    """
    n = tl.arange(0, 64)
    words += n
    scales += n
    if BLOCK_T == 1:
        sums = tl.zeros((BLOCK_K // CODES.steps, 64), tl.float32)
    else:
        sums = tl.zeros((BLOCK_T, 64), tl.float32)
    for block in tl.range(first, end):
        at = block * (BLOCK_K // CODES.steps)
        if BLOCK_T == 1:
            sums = add_row(sums, row, size_k, words, scales, at, column_words, CODES, OPERAND)
        else:
            k = block * BLOCK_K + tl.arange(0, BLOCK_K)
            inside = present[:, None] & (k < size_k)[None, :]
            x = tl.load(row[:, None] + k[None, :], mask=inside, other=0).to(OPERAND)
            sums = add_block(sums, x, words, scales, at, column_words, CODES, OPERAND)
    if BLOCK_T == 1:
        sums = tl.sum(sums, 0)[None, :]
    return sums


@triton.jit
def add_row(
    sums_WN,
    row,
    size_k,
    words,
    scales,
    first_word,
    end_word,
    CODES: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """As `add_block`, for one row, `row` its pointer `[1]`; words of a column stay apart."""
    w = first_word + tl.arange(0, sums_WN.shape[0])
    group = w // CODES.group_words
    at = (w * 64 + (group + 1) * CODES.scale_words)[:, None]
    inside = (w < end_word)[:, None]
    word = tl.load(words[None, :] + at, mask=inside, other=0)
    dots = tl.zeros(sums_WN.shape, tl.float32)
    total = tl.zeros(w.shape, tl.float32)
    STEPS: tl.constexpr = CODES.steps
    for step in tl.static_range(STEPS):
        k = w * STEPS + step
        x = tl.load(row + k, mask=k < size_k, other=0).to(OPERAND).to(tl.float32)
        dots += numbers_of(word, first_bit(step, CODES), CODES) * x[:, None]
        total += x
    if CODES.scaled == "":
        return sums_WN + dots
    at = (group * CODES.scale_stride)[:, None]
    scale, zero = scales_of(tl.load(scales[None, :] + at, mask=inside, other=0), CODES)
    if CODES.number == "integer":
        dots -= zero * total[:, None]
    elif CODES.number == "float":
        dots *= CODES.power
    return sums_WN + dots * scale


@triton.jit
def add_block(
    sums_TN,
    x_TK,
    words,
    scales,
    first_word,
    end_word,
    CODES: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """Sums with one more block of K.

    Args:
        x_TK: in the operand's dtype, 0 beyond K.
        words, scales: pointers `[N]` to the first of each column.
        first_word, end_word: where the block begins in a column, and where the column ends.
    """
    w = first_word + tl.arange(0, x_TK.shape[1] // CODES.steps)
    group = w // CODES.group_words
    at = (w * 64 + (group + 1) * CODES.scale_words)[:, None]
    inside = (w < end_word)[:, None]
    word = tl.load(words[None, :] + at, mask=inside, other=0)
    step = tl.arange(0, CODES.steps)
    number = numbers_of(word[:, None, :], first_bit(step, CODES)[None, :, None], CODES)
    if CODES.number == "float":
        number *= CODES.power
    if CODES.scaled == "weights":
        at = (group * CODES.scale_stride)[:, None]
        scale, zero = scales_of(tl.load(scales[None, :] + at, mask=inside, other=0), CODES)
        number = (number - zero[:, None, :]) * scale[:, None, :]
    elif CODES.number == "integer":
        number -= CODES.bias
    weights = tl.reshape(number, (x_TK.shape[1], sums_TN.shape[1])).to(OPERAND)
    if CODES.scaled == "sums":
        at = (first_word // CODES.group_words) * CODES.scale_stride
        scale, _ = scales_of(tl.load(scales + at), CODES)
        return sums_TN + tl.dot(x_TK, weights) * scale[None, :]
    return tl.dot(x_TK, weights, sums_TN, input_precision="ieee")
