"""Recording what a device is given, to give it all again with one launch."""

from collections.abc import Callable
from typing import Protocol

import torch


class Recorder(Protocol):
    """Of one device."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Take down what `run` gives to the device, which does not do it yet.

        Returns:
            What gives it all again: it reads and writes the same memory each time.

        Raises:
            Exception: `run` did what cannot be recorded, such as waiting for the device.
        """
        ...


def make_current(device: torch.device) -> None:
    """Triton launches on a thread's current device, not on that of its arguments: make it this one.

    On a CPU nothing happens.
    """
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)


class CudaRecorder:
    """CUDA graphs. What they need between their operations is in one pool: one runs at a time.

    Other threads may use the device meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """As the protocol says."""
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        recording = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        try:
            with torch.cuda.device(self._device), recording:
                run()
        finally:  # PyTorch stays in the stream that records, if what it recorded is not valid
            torch.cuda.set_stream(before)
        replay: Callable[[], None] = graph.replay
        return replay
