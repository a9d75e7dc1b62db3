"""The line between a model's devices and the host's experts, and experts that devices keep.

A device writes the rows of a mixture layer into buffers of the host and says so in a word; the
kernels' asynchronous thread, which waits for that word, computes and says so in another. See
`inlay.kernels.HandOver`.

Shapes: T tokens, M model width, K experts per token, E experts, L mixture layers.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inlay import kernels
from inlay.core.model_shape import Activation

if TYPE_CHECKING:
    from torch import Tensor

_SLOTS = 2  # a layer's rows stay while its deferred experts run beside the next layer's attention
_ANSWER_TIMEOUT_S = 60.0  # of one layer
_STEP_TIMEOUT_S = 600.0  # a device may have all layers of a long prompt before it


class HandOverTensors(NamedTuple):
    """The same buffers for PyTorch."""

    x_2TM: "Tensor"
    out_2TM: "Tensor"
    ids_2TK: "Tensor"
    routing_2TK: "Tensor"


class HandOverLine:
    """Buffers for so many rows, and who answers them.

    Args:
        layers: experts of each mixture layer, all alike in number and width.
        page_locked: the buffers are for a device that copies by itself.
        all_rows: the device copies all rows in each step, as a recording does; the host computes
            those of the step.

    Attributes:
        rows: that the device copies in the step that was begun.
        x_2TM, out_2TM, routing_2TK: float32.
        ids_2TK: int32.
    """

    def __init__(
        self,
        layers: Sequence[kernels.ExpertWeights],
        activation: kernels.Activation,
        *,
        max_rows: int,
        per_token: int,
        page_locked: bool,
        all_rows: bool = False,
    ) -> None:
        hidden = layers[0].hidden

        def buffer(*size: int, dtype: Any = np.float32) -> NDArray[Any]:
            return (_page_locked if page_locked else np.zeros)(size, dtype)

        self.max_rows, self.rows = max_rows, max_rows
        self._all_rows = all_rows
        self.x_2TM = buffer(_SLOTS, max_rows, hidden)
        self.out_2TM = buffer(_SLOTS, max_rows, hidden)
        self.ids_2TK = buffer(_SLOTS, max_rows, per_token, dtype=np.int32)
        self.routing_2TK = buffer(_SLOTS, max_rows, per_token)
        self._words_L2 = buffer(len(layers), 2, dtype=np.int32).view(np.uint32)
        self.host = kernels.HandOver(
            layers,
            self.x_2TM,
            self.ids_2TK,
            self.routing_2TK,
            self.out_2TM,
            self._words_L2,
            activation=activation,
        )
        self._pending: kernels.Pending | None = None
        self._stream_words: dict[int, kernels.StreamWords] = {}

    @cached_property
    def tensors(self) -> HandOverTensors:
        """The buffers for PyTorch, in the same memory."""
        import torch

        arrays = (self.x_2TM, self.out_2TM, self.ids_2TK, self.routing_2TK)
        return HandOverTensors(*map(torch.from_numpy, arrays))

    def stream_words(self, device: int) -> kernels.StreamWords:
        """The words for streams of a CUDA device. Raises as `kernels.StreamWords`."""
        if device not in self._stream_words:
            self._stream_words[device] = kernels.StreamWords(self._words_L2, device)
        return self._stream_words[device]

    def begin(
        self,
        on_host_LE: NDArray[np.bool_],
        decode_T: NDArray[np.bool_],
        deferred: int,
        adapters: Sequence[Sequence[tuple[kernels.ExpertAdapter | None, None, int, int]]] = (),
    ) -> None:
        """Have the host wait for all layers of a step.

        Args:
            on_host_LE: the experts that it computes.
            decode_T: tokens that were generated: these are counted, and may defer experts.
            deferred: how many.
            adapters: of each layer, and their rows; empty: none.
        """
        if not self._all_rows:
            self.rows = len(decode_T)
        self._pending = self.host.begin(
            len(decode_T),
            on_host_LE=on_host_LE,
            deferred_T=decode_T * np.int32(deferred) if deferred else None,
            counted_T=decode_T,
            timeout_s=_ANSWER_TIMEOUT_S,
            adapters=adapters,
        )

    def end(self) -> None:
        """Wait until the host has done its share of the step.

        Raises:
            InlayError: it failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait(_STEP_TIMEOUT_S)

    def abort(self) -> None:
        """Give up a step that failed elsewhere: nobody asks for its layers any more."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self.host.cancel()
            try:
                pending.wait(_ANSWER_TIMEOUT_S)
            except Exception:
                pass  # the step has failed already, and says why

    def slot(self, layer: int) -> int:
        """Which half of the buffers a layer uses."""
        return layer % _SLOTS

    def ask(self, layer: int) -> None:
        """Say that a layer's rows are there."""
        self.host.ask(layer)

    def wait_answer(self, layer: int) -> None:
        """Wait until a layer's sums are there."""
        self.host.wait_answer(layer, _ANSWER_TIMEOUT_S)


def _page_locked(size: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Zeros that a CUDA device copies by itself."""
    import torch

    zeros = torch.zeros(size, dtype=getattr(torch, np.dtype(dtype).name), pin_memory=True)
    array: NDArray[Any] = zeros.numpy()
    return array


class Residents(Protocol):
    """Some experts of one layer in a device's memory, each in a slot."""

    @property
    def slots(self) -> int:
        """How many have room."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory that they take on the device."""
        ...

    def bind(self, host: kernels.ExpertWeights) -> None:
        """Fill from these experts from now on, of the same sizes and format."""
        ...

    def fill(self, slot: int, expert: int) -> None:
        """Copy a host expert; no step may use the slot meanwhile."""
        ...

    def show(self, slot_of_E: NDArray[np.int32]) -> None:
        """Say where experts are from the next step on; -1: not here."""
        ...


def fill_first(residents: Residents, num_experts: int) -> None:
    """Keep the first experts of a layer, as long as nobody knows better."""
    slot_of_E = np.full(num_experts, -1, np.int32)
    for slot in range(residents.slots):
        residents.fill(slot, slot)
        slot_of_E[slot] = slot
    residents.show(slot_of_E)


def activation_of(activation: Activation) -> kernels.Activation:
    """As the kernels take it."""
    if activation.kind == "silu":
        return kernels.SILU
    return kernels.Activation(activation.alpha, activation.limit, up_offset=1)
