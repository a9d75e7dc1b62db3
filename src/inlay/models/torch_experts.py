"""Routed experts in plain PyTorch: choosing them, and what one of them computes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from inlay import kernels
from inlay.core.model_shape import Activation, RouterShape
from inlay.models.ops import ExpertTensors
from inlay.models.published.rows import floats_of
from inlay.models.torch_adapters import TorchExpertAdapter
from inlay.models.torch_arrays import tensor_of


class AddedRows(NamedTuple):
    """An adapter of an expert's rows, the expert's number in it, and which of the rows have it:
    numbers, or a slice.
    """

    adapter: TorchExpertAdapter
    expert: int
    rows: Tensor | slice


class TorchExperts:
    """The experts of a layer.

    Args:
        gate_up_E2FM, down_EMF: their memory.
        dtype: activations are rounded to it.
        biases: they have some.
    """

    def __init__(
        self, gate_up_E2FM: Tensor, down_EMF: Tensor, dtype: torch.dtype, *, biases: bool
    ) -> None:
        self.gate_up_E2FM, self.down_EMF, self.dtype = gate_up_E2FM, down_EMF, dtype
        self._biases = None
        if biases:
            zeros = (torch.zeros(of.shape[:2], device=of.device) for of in (gate_up_E2FM, down_EMF))
            self._biases = tuple(zeros)

    @property
    def slots(self) -> int:
        """Experts that have room."""
        return len(self.down_EMF)

    def set_slot(self, slot: int, experts: kernels.ExpertWeights, expert: int) -> None:
        """Copy one of the host's; the floats are what the host computes with."""
        gate_FM, up_FM, down_MF = experts.dequantize(expert)
        biases, of_all = None, experts.biases()
        if of_all is not None:
            width, of_one = experts.intermediate, of_all[expert].copy()
            biases = (of_one[:width], of_one[width : 2 * width], of_one[2 * width :])
        self.set(slot, ExpertTensors(gate_FM, up_FM, down_MF, biases))

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.gate_up_E2FM.nbytes + self.down_EMF.nbytes

    def set(self, expert: int, tensors: ExpertTensors) -> None:
        """Copy one expert."""
        width = self.down_EMF.shape[2]
        for part, held in (
            (tensors.gate_FM, self.gate_up_E2FM[expert, :width]),
            (tensors.up_FM, self.gate_up_E2FM[expert, width:]),
            (tensors.down_MF, self.down_EMF[expert]),
        ):
            held.copy_(tensor_of(floats_of(part)))
        if self._biases and tensors.biases:
            gate, up, down = map(tensor_of, tensors.biases)
            self._biases[0][expert, :width] = gate
            self._biases[0][expert, width:] = up
            self._biases[1][expert] = down

    def one(
        self, slot: int, x_TM: Tensor, activation: Activation, added: Sequence[AddedRows] = ()
    ) -> Tensor:
        """What the expert in a slot makes of these rows, float32.

        Args:
            added: adapters, each of some of the rows.
        """
        stored = self.down_EMF.dtype
        gate_up = x_TM.to(self.dtype).to(stored) @ self.gate_up_E2FM[slot].t()
        if self._biases:
            gate_up = gate_up + self._biases[0][slot]
        gate, up = gate_up.chunk(2, dim=-1)
        _add(added, "gate", x_TM, gate)
        _add(added, "up", x_TM, up)
        active = _activated(gate, up, activation).to(self.dtype).to(stored)
        down = (active @ self.down_EMF[slot].t()).float()
        _add(added, "down", active, down)
        return down + self._biases[1][slot] if self._biases else down

    def add_all(
        self,
        x_TM: Tensor,
        activation: Activation,
        out_TM: Tensor,
        added: Sequence[tuple[TorchExpertAdapter, slice]] = (),
    ) -> None:
        """Add what all of them make of these rows, as shared experts do."""
        for expert in range(len(self.down_EMF)):
            of_one = [AddedRows(adapter, expert, rows) for adapter, rows in added]
            out_TM += self.one(expert, x_TM, activation, of_one)


def _add(added: Sequence[AddedRows], matrix: str, x_TK: Tensor, out_TN: Tensor) -> None:
    for adapter, expert, rows in added:
        more = adapter.of(expert, matrix, x_TK[rows])
        if more is not None:
            out_TN[rows] += more.to(out_TN.dtype)


class Slots(Protocol):
    """Experts of one layer on a device, each in a slot."""

    @property
    def slots(self) -> int:
        """How many have room."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory of all slots."""
        ...

    def set_slot(self, slot: int, experts: kernels.ExpertWeights, expert: int) -> None:
        """Copy one expert of the host's there."""
        ...


def filler(experts: Slots, host: kernels.ExpertWeights) -> Callable[[int, int], None]:
    """What brings the host's experts to slots."""
    return lambda slot, expert: experts.set_slot(slot, host, expert)


class SlottedExperts:
    """Some experts of a layer on a device; see `Residents`.

    Args:
        num_experts: of the layer.
        bring: copies an expert to a slot, both by number.
    """

    def __init__(
        self,
        experts: Slots,
        num_experts: int,
        bring: Callable[[int, int], None],
        device: torch.device,
    ) -> None:
        self.experts: Any = experts
        self._bring = bring
        self._slot_of_E = torch.full((num_experts,), -1, dtype=torch.int32, device=device)
        self._left: torch.cuda.Event | None = None  # when the device last used what has left
        self._copying = None
        if device.type == "cuda":
            self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def slots(self) -> int:
        """As the protocol says."""
        return int(self.experts.slots)

    @property
    def nbytes(self) -> int:
        """As the protocol says."""
        return int(self.experts.nbytes)

    def bind(self, host: kernels.ExpertWeights) -> None:
        """As the protocol says."""
        self._bring = filler(self.experts, host)

    def fill(self, slot: int, expert: int) -> None:
        """As the protocol says; beside what the device computes."""
        if self._copying is None:
            self._bring(slot, expert)
            return
        with torch.cuda.stream(self._copying):
            if self._left is not None:
                self._copying.wait_event(self._left)
            self._bring(slot, expert)
            self._copying.synchronize()

    def show(self, slot_of_E: NDArray[np.int32]) -> None:
        """As the protocol says."""
        self._slot_of_E.copy_(torch.from_numpy(slot_of_E))
        if self._copying is not None:
            self._left = torch.cuda.current_stream(self._slot_of_E.device).record_event()

    def experts_in_slots(self) -> dict[int, int]:
        """The expert in each slot that has one; waits for the device."""
        slots = enumerate(self._slot_of_E.tolist())
        return {slot: expert for expert, slot in slots if slot >= 0}

    def slots_of(self, ids_TK: Tensor) -> Tensor:
        """Where the chosen experts are; -1: not here, or none is chosen."""
        return torch.where(ids_TK < 0, -1, self._slot_of_E[ids_TK.clamp(min=0).long()])


def _activated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    if activation.kind == "silu":
        return F.silu(gate) * up
    gate = gate.clamp(max=activation.limit)
    up = up.clamp(-activation.limit, activation.limit)
    return (up + 1) * gate * torch.sigmoid(activation.alpha * gate)


def route(
    logits_TE: Tensor,
    router: RouterShape,
    correction_E: Tensor | None,
    out_ids_TK: Tensor,
    out_weights_TK: Tensor,
) -> None:
    """See `Ops.route`."""
    sigmoid = router.score == "sigmoid"
    scores_TE = logits_TE.sigmoid() if sigmoid else logits_TE.softmax(-1)
    wanted_TE = scores_TE if correction_E is None else scores_TE + correction_E
    if router.groups > router.groups_per_token:
        wanted_TE = _in_best_groups(wanted_TE, router)
    ids_TK = wanted_TE.topk(out_ids_TK.shape[1], dim=-1).indices
    weights_TK = scores_TE.gather(1, ids_TK)
    if router.normalize:
        # All sigmoids may be 0.
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + (1e-20 if sigmoid else 0))
    out_ids_TK.copy_(ids_TK)
    out_weights_TK.copy_(weights_TK * router.scale)


def _in_best_groups(wanted_TE: Tensor, router: RouterShape) -> Tensor:
    """What experts of other groups are wanted for is minus infinity."""
    grouped_TGE = wanted_TE.view(len(wanted_TE), router.groups, -1)
    best = grouped_TGE.topk(2 if router.group_score == "best_two" else 1, dim=-1).values
    chosen = best.sum(-1).topk(router.groups_per_token, dim=-1).indices
    closed_TG = torch.ones(best.shape[:2], dtype=torch.bool, device=wanted_TE.device)
    closed_TG.scatter_(1, chosen, value=False)
    return grouped_TGE.masked_fill(closed_TG[..., None], -torch.inf).flatten(1)
