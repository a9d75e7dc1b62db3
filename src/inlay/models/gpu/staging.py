"""The way of experts' bytes from the host's packed weights to a GPU."""

import threading

import torch
from torch import Tensor

from inlay import kernels


class Staging:
    """Two page-locked buffers: while a GPU copies from one, the next expert is put in the other.

    Experts of any layers and sizes go through it, from any thread, one after the other.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self._turn = 0
        self._lock = threading.Lock()
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * 2
        self._copied: list[torch.cuda.Event | None] = [None, None]

    def send(
        self, experts: kernels.ExpertWeights, expert: int, gate_up: Tensor, down: Tensor
    ) -> None:
        """Copy an expert's panels, on the current stream of the thread; the host may go on.

        Args:
            gate_up, down: uint8, the GPU's, of just these sizes.

        Cost: one pass over the bytes in the host's memory, and one over the link.
        """
        with self._lock:
            first, last = len(gate_up), len(gate_up) + len(down)
            buffer = self._free(last)
            experts.copy_panels(expert, buffer[:first].numpy(), buffer[first:last].numpy())
            gate_up.copy_(buffer[:first], non_blocking=True)
            down.copy_(buffer[first:last], non_blocking=True)
            if self._gpu:
                stream = torch.cuda.current_stream(gate_up.device)
                self._copied[self._turn] = stream.record_event()
            self._turn = 1 - self._turn

    def _free(self, size: int) -> Tensor:
        """The buffer whose turn it is, once it has been copied."""
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        if len(self._buffers[self._turn]) < size:
            self._buffers[self._turn] = torch.empty(size, dtype=torch.uint8, pin_memory=self._gpu)
        return self._buffers[self._turn]
