"""Tokens and the experts that they chose, put in order: which rows a program takes together.

Shapes: P pairs of a token and one of its choices, B blocks of pairs of one slot.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_P = 256


@dataclass(frozen=True)
class Blocks:
    """Pairs by slot, in blocks of at most `rows` of one slot.

    Attributes:
        order_P: numbers of the pairs by slot, those of a slot in ascending order.
        table_B3: of each block its slot, its first place in the order, and its pairs; a slot of -1
            where there is no block.
        rows: pairs of a block.
    """

    order_P: Tensor
    table_B3: Tensor
    rows: int


def blocks_of(slots_P: Tensor, slots: int, rows: int) -> Blocks:
    """Order pairs without the host: sizes depend on shapes alone.

    Args:
        slots_P: int32, contiguous; a negative slot is not here, and in no block.
        slots: how many there are.
        rows: of a block.

    Cost: two launches, P^2 comparisons.
    """
    count = len(slots_P)
    # Each slot that was chosen may leave its last block with one pair.
    most = (count + min(count, slots) * (rows - 1)) // rows
    order_P, places_P3 = torch.empty_like(slots_P), slots_P.new_empty((count, 3))
    table_B3 = slots_P.new_empty((most, 3))
    grid = (triton.cdiv(max(count, most), _BLOCK_P),)
    _place[grid](slots_P, order_P, places_P3, table_B3, count, most, ROWS=rows, BLOCK=_BLOCK_P)
    _begin[grid](slots_P, places_P3, table_B3, count, ROWS=rows, BLOCK=_BLOCK_P)
    return Blocks(order_P, table_B3, rows)


@triton.jit(do_not_specialize=["count", "most"])
def _place(slots, order, places, table, count, most, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sort by counting what comes before each pair; close the table's blocks."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(table + pair * 3, -1, mask=pair < most)
    slot = tl.load(slots + pair, mask=pair < count, other=-1)
    before = tl.zeros((BLOCK,), tl.int32)  # in the order
    equal = tl.zeros((BLOCK,), tl.int32)
    rank = tl.zeros((BLOCK,), tl.int32)  # among its slot's
    for start in range(0, count, 32):
        other = start + tl.arange(0, 32)
        its_slot = tl.load(slots + other, mask=other < count, other=-1)
        same = (its_slot[None, :] == slot[:, None]) & (its_slot >= 0)[None, :]
        lower = (its_slot[None, :] < slot[:, None]) & (its_slot >= 0)[None, :]
        earlier = same & (other[None, :] < pair[:, None])
        before += tl.sum((lower | earlier).to(tl.int32), 1)
        equal += tl.sum(same.to(tl.int32), 1)
        rank += tl.sum(earlier.to(tl.int32), 1)
    here = (pair < count) & (slot >= 0)
    tl.store(order + before, pair, mask=here)
    # Blocks of its slot, told by the slot's first pair alone.
    blocks = tl.where(here & (rank == 0), (equal + ROWS - 1) // ROWS, 0)
    tl.store(places + pair * 3, blocks, mask=pair < count)
    tl.store(places + pair * 3 + 1, before, mask=pair < count)
    tl.store(places + pair * 3 + 2, tl.where(here, equal - rank, 0), mask=pair < count)


@triton.jit(do_not_specialize=["count"])
def _begin(slots, places, table, count, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Fill in the table's blocks: each by its first pair."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + pair, mask=pair < count, other=-1)
    first = tl.load(places + pair * 3 + 1, mask=pair < count, other=0)
    left = tl.load(places + pair * 3 + 2, mask=pair < count, other=0)
    block = tl.zeros((BLOCK,), tl.int32)
    equal = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, count, 32):
        other = start + tl.arange(0, 32)
        its_slot = tl.load(slots + other, mask=other < count, other=-1)
        its_blocks = tl.load(places + other * 3, mask=other < count, other=0)
        lower = its_slot[None, :] < slot[:, None]
        block += tl.sum(tl.where(lower, its_blocks[None, :], 0), 1)
        equal += tl.sum((its_slot[None, :] == slot[:, None]).to(tl.int32), 1)
    rank = equal - left
    begins = (pair < count) & (slot >= 0) & (rank % ROWS == 0)
    at = table + (block + rank // ROWS) * 3
    tl.store(at, slot, mask=begins)
    tl.store(at + 1, first, mask=begins)
    tl.store(at + 2, tl.minimum(left, ROWS), mask=begins)
