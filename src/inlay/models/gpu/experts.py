"""Routed experts in a GPU's memory, and what chosen ones of them make of tokens.

Experts lie in slots, in the host's format and bytes, so that one is brought here by a copy alone.

Shapes: T tokens, K choices of each, P = T * K pairs, S slots, M model width, F expert width,
B blocks of pairs (`pairs`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay import kernels
from inlay.models.gpu.expert_adapters import AddedPairs, AddedProducts
from inlay.models.gpu.linear import block_rows, launch_of, operand_rows
from inlay.models.gpu.pairs import blocks_of
from inlay.models.gpu.panels import PANEL, Panels
from inlay.models.gpu.product import operand_of, panel_product
from inlay.models.gpu.staging import Staging

_HALF = PANEL // 2
# Of what experts make of pairs, before it is added up; more tokens go in turns.
_SCRATCH_BYTES = 256 << 20


class GpuExperts:
    """Slots for experts of one layer.

    Args:
        slots: their number; each stands for an expert of zeros until it is set.
        hidden, width: M and F.
        weight_format: one of the CPU kernels' but float32.
        device: where they lie.
        biases: experts have some.
        staging: that experts come through; layers may share one.
    """

    def __init__(
        self,
        slots: int,
        hidden: int,
        width: int,
        weight_format: str,
        device: torch.device,
        *,
        biases: bool = False,
        staging: Staging | None = None,
    ) -> None:
        self._staging = staging or Staging(device)
        self.slots, self.hidden, self.width = slots, hidden, width
        self.weight_format = weight_format
        gate_up_rows = -(-width // _HALF) * PANEL
        self._gate_up = Panels.empty(slots, gate_up_rows, hidden, weight_format, device)
        self._down = Panels.empty(slots, hidden, width, weight_format, device)
        # Of gate, up and down.
        self._biases = torch.zeros((slots, 2 * width + hidden), device=device) if biases else None

    @property
    def nbytes(self) -> int:
        """Memory of all slots."""
        biases = 0 if self._biases is None else self._biases.nbytes
        return self._gate_up.data.nbytes + self._down.data.nbytes + biases

    def set_slot(self, slot: int, experts: kernels.ExpertWeights, expert: int) -> None:
        """Copy one expert of the host's, of the same sizes, format and biases, into a slot.

        It is there for what the thread's current stream runs afterwards.
        """
        self._staging.send(experts, expert, self._gate_up.data[slot], self._down.data[slot])
        biases = experts.biases()
        if self._biases is not None and biases is not None:
            self._biases[slot].copy_(torch.tensor(biases[expert]))

    def moe(
        self,
        x_TM: Tensor,
        slots_TK: Tensor,
        routing_TK: Tensor,
        out_TM: Tensor,
        activation: kernels.Activation = kernels.SILU,
        added: AddedPairs | None = None,
    ) -> None:
        """Add the weighted sum of each token's experts that are here to `out`.

        Nothing waits for the GPU, and launches depend on shapes alone, so that a CUDA graph can
        hold them.

        Args:
            x_TM: float32, contiguous columns.
            slots_TK: int32, contiguous. A choice with a negative slot is skipped, and its routing
                weight is not looked at.
            routing_TK: float32, contiguous.
            out_TM: float32, contiguous columns, apart from x.
            added: what adapters add, to gate and up before the activation; it has all tokens of x.

        Tolerance: x, and what lies between the products, are rounded to bfloat16; otherwise as
            `linear`. A token's experts are added in the order of its choices.
        Cost: reads a chosen slot about once for up to 64 of its tokens; five launches, and scratch
            of P * (M + F) numbers for so many tokens as it takes 256 MiB. Adapters take six more,
            and P * 2 F numbers more.
        """
        choices = slots_TK.shape[1]
        each = self.hidden if added is None else self.hidden + 2 * self.width
        turn = max(1, _SCRATCH_BYTES // (4 * choices * each))
        with torch.cuda.device_of(x_TM):
            for start in range(0, len(x_TM), turn):
                part = slice(start, start + turn)
                products = None if added is None else added.begin(part, slots_TK[part])
                self._add(
                    x_TM[part],
                    slots_TK[part],
                    routing_TK[part],
                    out_TM[part],
                    activation,
                    products,
                )

    def _add(
        self,
        x_TM: Tensor,
        slots_TK: Tensor,
        routing_TK: Tensor,
        out_TM: Tensor,
        activation: kernels.Activation,
        products: AddedProducts | None,
    ) -> None:
        count, choices = slots_TK.numel(), slots_TK.shape[1]
        # Few pairs hardly meet in a slot.
        few = len(x_TM) == 1 or count <= self.slots // 4
        rows = 1 if few else max(16, min(64, block_rows(-(-count // self.slots))))
        blocks = blocks_of(slots_TK.view(-1), self.slots, rows)
        x_TM = operand_rows(x_TM)
        narrow = torch.bfloat16 if x_TM.is_cuda else torch.float32
        active_PF = torch.empty((count, self.width), dtype=narrow, device=x_TM.device)
        made_PM = torch.empty((count, self.hidden), device=x_TM.device)
        added = None if products is None else products.gate_up(x_TM, choices, self.width)
        for weight, x, each, out, half, first_bias in (
            (self._gate_up, x_TM, choices, active_PF, _HALF, 0),
            (self._down, active_PF, 1, made_PM, PANEL, 2 * self.width),
        ):
            _expert_product[(triton.cdiv(out.shape[1], half), len(blocks.table_B3))](
                x,
                weight.words,
                weight.scales,
                None if self._biases is None else self._biases[:, first_bias:],
                added if half == _HALF else None,
                None if products is None else products.keys_P,
                out,
                blocks.order_P,
                blocks.table_B3,
                each,
                out.shape[1],
                weight.columns,
                weight.panel_words,
                weight.column_words,
                weight.data.stride(0) // 4,
                0 if self._biases is None else self._biases.stride(0),
                x.stride(0),
                activation.alpha,
                activation.limit,
                activation.up_offset,
                CODES=weight.codes,
                OPERAND=operand_of(x_TM),
                BLOCK_T=rows,
                GATED=half == _HALF,
                **launch_of(rows),
            )
        if products is not None:
            products.add_down(active_PF, made_PM)
        _add_choices[(len(x_TM), triton.cdiv(self.hidden, 1024))](
            made_PM, slots_TK, routing_TK, out_TM, self.hidden, choices, out_TM.stride(0)
        )


@triton.jit
def _expert_product(
    x,
    words,
    scales,
    biases,
    added,
    keys,
    out,
    order,
    table,
    each,
    columns,
    size_k,
    panel_words,
    column_words,
    slot_words,
    slot_biases,
    x_row,
    alpha,
    limit,
    up_offset,
    CODES: tl.constexpr,
    OPERAND: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATED: tl.constexpr,
):
    """One panel of a block's expert, for its pairs.

    Row `pair // each` of x is theirs; to `out`, row `pair`, goes the product, or of a panel of gate
    and up what the activation makes of it, and of what is `added` for pairs with a key.
    """
    panel = tl.program_id(0)
    entry = table + tl.program_id(1) * 3
    slot = tl.load(entry).to(tl.int64)
    if slot < 0:
        return
    i = tl.arange(0, BLOCK_T)
    present = i < tl.load(entry + 2)
    pair = tl.load(order + tl.load(entry + 1) + i, mask=present, other=0).to(tl.int64)
    start = slot * slot_words + panel.to(tl.int64) * panel_words
    sums = panel_product(
        x + (pair // each) * x_row,
        present,
        size_k,
        words + start,
        scales + start * CODES.word_scales,
        0,
        tl.cdiv(size_k, BLOCK_K),
        column_words,
        CODES,
        OPERAND,
        BLOCK_T,
        BLOCK_K,
    )
    bias = biases + slot * slot_biases if biases is not None else None
    if GATED:
        column = panel * 32 + tl.arange(0, 32)
        gate, up = tl.split(tl.permute(tl.reshape(sums, (BLOCK_T, 2, 32)), (0, 2, 1)))
        if biases is not None:
            gate += tl.load(bias + column, mask=column < columns, other=0)[None, :]
            up += tl.load(bias + columns + column, mask=column < columns, other=0)[None, :]
        if added is not None:
            has = present & (tl.load(keys + pair, mask=present, other=-1) >= 0)
            at = added + (pair * 2 * columns)[:, None] + column[None, :]
            inside = has[:, None] & (column < columns)[None, :]
            gate += tl.load(at, mask=inside, other=0)
            up += tl.load(at + columns, mask=inside, other=0)
        gate = tl.minimum(gate, limit)
        up = tl.maximum(tl.minimum(up, limit), -limit)
        result = gate * tl.sigmoid(alpha * gate) * (up + up_offset)
    else:
        column = panel * 64 + tl.arange(0, 64)
        result = sums
        if biases is not None:
            result += tl.load(bias + column, mask=column < columns, other=0)[None, :]
    inside = present[:, None] & (column < columns)[None, :]
    tl.store(out + pair[:, None] * columns + column[None, :], result, mask=inside)


@triton.jit
def _add_choices(made, slots, routing, out, columns, choices, out_row):
    """`out[t] += routing[t, k] * made[t, k]`, k ascending."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * 1024 + tl.arange(0, 1024)
    inside = column < columns
    at = out + token * out_row + column
    sums = tl.load(at, mask=inside, other=0)
    for choice in range(choices):
        pair = token * choices + choice
        if tl.load(slots + pair) >= 0:
            sums += tl.load(routing + pair) * tl.load(
                made + pair * columns + column, mask=inside, other=0
            )
    tl.store(at, sums, mask=inside)
