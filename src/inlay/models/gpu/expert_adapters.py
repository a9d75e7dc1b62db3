"""What adapters add to experts in a GPU's memory: two small products for each pair that has some.

Pairs of a token and a chosen expert are put in order by adapter and expert, so that a program takes
those of one adapter's A or B together, whichever of many adapters a batch has. Where an adapter's
matrices lie is read on the GPU, from a table: ranks and experts may be others in each.

Shapes: T tokens, K choices of each, P = T * K pairs, N adapters, E experts, M model width, F expert
width, r rank, S pieces of a sum, B blocks of pairs (`pairs`).

Source: S-LoRA (arXiv 2311.03285) and Punica (arXiv 2310.18547), there for dense layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.models.gpu.linear import block_rows, pieces_of
from inlay.models.gpu.pairs import Blocks, blocks_of
from inlay.models.gpu.product import operand_of
from inlay.models.ops import ExpertPairs
from inlay.models.torch_arrays import tensor_of

_MATRICES = ("gate", "up", "down")
_DOWN = _MATRICES.index("down")
_FIELDS = 5  # of a matrix in the table
_BLOCK_R, _BLOCK_K, _BLOCK_N = 32, 128, 128


class _Stack(NamedTuple):
    """What an adapter has for one matrix of a layer's experts.

    Attributes:
        place_E: int32, where an expert's is; -1: it has none.
        scales, a, b: of those that have some, `[.]`, `[., r, inputs]` and `[., r, outputs]`; zeros
            fill up lower ranks.
    """

    place_E: Tensor
    scales: Tensor
    a: Tensor
    b: Tensor


class GpuExpertAdapter:
    """What one adapter adds to the experts of a layer.

    Args:
        experts, hidden, width: E, M and F.

    Attributes:
        num_experts: E.
        max_rank: the highest of its ranks.
        table: int64 `[3, 5]`, on the GPU: for gate, up and down the addresses of places, scales, A
            and B, and the rank.

    Cost: memory of the matrices in bfloat16, in which they are multiplied; in the interpreter
        float32.
    """

    def __init__(
        self, experts: int, hidden: int, width: int, pairs: ExpertPairs, device: torch.device
    ) -> None:
        self.num_experts = experts
        stored = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._stacks = {
            name: _stack(experts, sizes, name, pairs, stored, device)
            for name, sizes in zip(
                _MATRICES, ((hidden, width), (hidden, width), (width, hidden)), strict=True
            )
        }
        self._places = {
            (expert, name): place
            for name in _MATRICES
            for place, expert in enumerate(_experts_of(name, pairs))
        }
        ranks = [stack.a.shape[1] for stack in self._stacks.values()]
        self.max_rank = max(ranks)
        rows = [
            [*(part.data_ptr() for part in stack), rank]
            for stack, rank in zip(self._stacks.values(), ranks, strict=True)
        ]
        self.table = torch.tensor(rows, dtype=torch.int64, device=device)

    @property
    def nbytes(self) -> int:
        """Memory of the matrices."""
        return sum(part.nbytes for stack in self._stacks.values() for part in stack)

    def of(self, expert: int, matrix: str, x_TK: Tensor) -> Tensor | None:
        """As `TorchExpertAdapter.of`."""
        place = self._places.get((expert, matrix))
        if place is None:
            return None
        _, scales, a, b = self._stacks[matrix]
        return x_TK.float() @ a[place].float().t() * scales[place] @ b[place].float()


def _experts_of(matrix: str, pairs: ExpertPairs) -> list[int]:
    return [expert for expert, name in pairs if name == matrix]


def _stack(
    experts: int,
    sizes: tuple[int, int],
    matrix: str,
    pairs: ExpertPairs,
    stored: torch.dtype,
    device: torch.device,
) -> _Stack:
    own = _experts_of(matrix, pairs)
    rank = max((len(pairs[expert, matrix][0]) for expert in own), default=0)
    place_E = torch.full((experts,), -1, dtype=torch.int32)
    place_E[own] = torch.arange(len(own), dtype=torch.int32)
    scales = torch.tensor([pairs[expert, matrix][2] for expert in own], dtype=torch.float32)
    a, b = (torch.zeros((len(own), rank, size), dtype=stored) for size in sizes)
    for place, expert in enumerate(own):
        a_rK, b_Nr, _ = pairs[expert, matrix]
        a[place, : len(a_rK)] = tensor_of(a_rK)
        b[place, : len(a_rK)] = tensor_of(b_Nr).t()
    return _Stack(*(part.to(device) for part in (place_E, scales, a, b)))


class AddedPairs:
    """What adapters add to some tokens.

    Args:
        adapters: of one layer.
        which_T: int32, the adapter of each token, by its place among these; -1: none.
        experts_TK: int32, the experts that tokens chose.
    """

    def __init__(
        self, adapters: Sequence[GpuExpertAdapter], which_T: Tensor, experts_TK: Tensor
    ) -> None:
        self._which_T1, self._experts_TK = which_T[:, None], experts_TK
        self.num_experts = adapters[0].num_experts
        self.max_rank = max(adapter.max_rank for adapter in adapters)
        self.table_N = torch.stack([adapter.table for adapter in adapters])

    def begin(self, tokens: slice, slots_TK: Tensor) -> "AddedProducts":
        """What is added to some of the tokens. `slots_TK`: theirs; negative ones are not here."""
        which_T1 = self._which_T1[tokens]
        keys_TK = which_T1 * self.num_experts + self._experts_TK[tokens]
        keys_P = torch.where((slots_TK >= 0) & (which_T1 >= 0), keys_TK, -1).view(-1)
        groups = len(self.table_N) * self.num_experts
        rows = max(16, min(64, block_rows(-(-len(keys_P) // groups))))
        return AddedProducts(self, keys_P, blocks_of(keys_P, groups, rows))


@dataclass(frozen=True)
class AddedProducts:
    """The two products of each pair, on the GPU that it is launched on.

    Attributes:
        keys_P: int32, adapter and expert of each pair as one number; -1: nothing is added.
        blocks: of pairs with one number.

    Tolerance: x, A, B and what lies between are rounded to bfloat16, sums are float32; in the
        interpreter nothing is rounded.
    """

    added: AddedPairs
    keys_P: Tensor
    blocks: Blocks

    def gate_up(self, x_TM: Tensor, choices: int, width: int) -> Tensor:
        """What comes to gate and up, `[P, 2, F]`; not written where nothing is added."""
        out_P2F = torch.empty((len(self.keys_P), 2, width), device=x_TM.device)
        self._multiply(x_TM, choices, out_P2F, 0, accumulate=False)
        return out_P2F

    def add_down(self, active_PF: Tensor, made_PM: Tensor) -> None:
        """Add what comes to down."""
        self._multiply(active_PF, 1, made_PM[:, None], _DOWN, accumulate=True)

    def _multiply(
        self, x: Tensor, each: int, out_PXN: Tensor, first: int, *, accumulate: bool
    ) -> None:
        """Of as many matrices as `out` has, from the first one on. `each`: pairs of a row of x."""
        count, matrices, columns = out_PXN.shape
        max_rank, blocks = self.added.max_rank, len(self.blocks.table_B3)
        tiles = triton.cdiv(max_rank, _BLOCK_R)
        pieces = pieces_of(blocks * matrices * tiles, x.shape[1], x.device)
        low = torch.empty((pieces, count, matrices, max_rank), device=x.device)
        arguments = (
            self.blocks.order_P,
            self.blocks.table_B3,
            self.added.table_N,
            self.added.num_experts,
            first,
            matrices,
            max_rank,
            pieces,
            low.stride(0),
        )
        sizes = {"FIELDS": _FIELDS, "BLOCK_T": self.blocks.rows, "BLOCK_R": _BLOCK_R}
        operand = operand_of(self.keys_P)
        _into_rank[(blocks, matrices * pieces, tiles)](
            x, low, *arguments, each, x.shape[1], x.stride(0),
            OPERAND=operand, BLOCK_K=_BLOCK_K, num_warps=4, num_stages=3, **sizes,
        )  # fmt: skip
        _out_of_rank[(triton.cdiv(columns, _BLOCK_N), blocks, matrices)](
            low, out_PXN, *arguments, columns,
            OPERAND=operand, BLOCK_N=_BLOCK_N, ACCUMULATE=accumulate, num_warps=4, num_stages=2,
            **sizes,
        )  # fmt: skip


@triton.jit
def _place_of(key, table, num_experts, matrix, FIELDS: tl.constexpr):
    """A matrix's part of the table, and where its expert's are; -1: nowhere."""
    fields = table + ((key // num_experts) * 3 + matrix) * FIELDS
    places = tl.load(fields).to(tl.pointer_type(tl.int32))
    return fields, tl.load(places + key % num_experts).to(tl.int64)


@triton.jit(do_not_specialize=["max_rank", "pieces", "low_piece"])
def _into_rank(
    x,
    low,
    order,
    table_B3,
    table,
    num_experts,
    first,
    matrices,
    max_rank,
    pieces,
    low_piece,
    each,
    size_k,
    x_row,
    OPERAND: tl.constexpr,
    FIELDS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """`low[piece, pair, matrix] = scale * A x`, of a piece; row `pair // each` of x is a pair's.

    A and B are held as the operand's dtype.
    """
    entry = table_B3 + tl.program_id(0) * 3
    matrix = tl.program_id(1) // pieces
    piece = tl.program_id(1) % pieces
    key = tl.load(entry)
    if key < 0:
        return
    fields, place = _place_of(key, table, num_experts, first + matrix, FIELDS)
    rank = tl.load(fields + 4).to(tl.int32)
    start = tl.program_id(2) * BLOCK_R
    if (place < 0) | (start >= rank):
        return
    scale = tl.load(tl.load(fields + 1).to(tl.pointer_type(tl.float32)) + place)
    a = tl.multiple_of(tl.load(fields + 2), 16).to(tl.pointer_type(OPERAND))
    i = tl.arange(0, BLOCK_T)
    present = i < tl.load(entry + 2)
    pair = tl.load(order + tl.load(entry + 1) + i, mask=present, other=0).to(tl.int64)
    r = start + tl.arange(0, BLOCK_R)
    row = x + (pair // each) * x_row
    a_r = a + (place * rank + r) * size_k
    blocks = tl.cdiv(size_k, BLOCK_K)
    sums = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
    for block in tl.range(piece * blocks // pieces, (piece + 1) * blocks // pieces):
        k = block * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = present[:, None] & (k < size_k)[None, :]
        x_TK = tl.load(row[:, None] + k[None, :], mask=inside, other=0).to(OPERAND)
        inside = (k < size_k)[:, None] & (r < rank)[None, :]
        a_KR = tl.load(a_r[None, :] + k[:, None], mask=inside, other=0)
        sums = tl.dot(x_TK, a_KR, sums, input_precision="ieee")
    at = low + piece.to(tl.int64) * low_piece + (pair * matrices + matrix) * max_rank
    inside = present[:, None] & (r < rank)[None, :]
    tl.store(at[:, None] + r[None, :], sums * scale, mask=inside)


@triton.jit(do_not_specialize=["max_rank", "pieces", "low_piece"])
def _out_of_rank(
    low,
    out,
    order,
    table_B3,
    table,
    num_experts,
    first,
    matrices,
    max_rank,
    pieces,
    low_piece,
    columns,
    OPERAND: tl.constexpr,
    FIELDS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):
    """`out[pair, matrix] (+)= B low`; zeros where an expert has no pair in the adapter."""
    entry = table_B3 + tl.program_id(1) * 3
    matrix = tl.program_id(2)
    key = tl.load(entry)
    if key < 0:
        return
    fields, place = _place_of(key, table, num_experts, first + matrix, FIELDS)
    rank = tl.where(place < 0, 0, tl.load(fields + 4)).to(tl.int32)
    b = tl.multiple_of(tl.load(fields + 3), 16).to(tl.pointer_type(OPERAND))
    i = tl.arange(0, BLOCK_T)
    present = i < tl.load(entry + 2)
    pair = tl.load(order + tl.load(entry + 1) + i, mask=present, other=0).to(tl.int64)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = present[:, None] & (r < rank)[None, :]
        at = low + ((pair * matrices + matrix) * max_rank)[:, None] + r[None, :]
        low_TR = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
        for _ in range(pieces):
            low_TR += tl.load(at, mask=inside, other=0)
            at += low_piece
        inside = (r < rank)[:, None] & (column < columns)[None, :]
        at = b + (place * rank + r)[:, None] * columns + column[None, :]
        b_RN = tl.load(at, mask=inside, other=0)
        sums = tl.dot(low_TR.to(OPERAND), b_RN, sums, input_precision="ieee")
    at = out + ((pair * matrices + matrix) * columns)[:, None] + column[None, :]
    inside = present[:, None] & (column < columns)[None, :]
    if ACCUMULATE:
        sums += tl.load(at, mask=inside, other=0)
    tl.store(at, sums, mask=inside)
