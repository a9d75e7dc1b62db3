"""A CUDA device's side of a hand-over's words: its streams set and await them by themselves.

Given to a stream in the order of its other work, and recorded by a CUDA graph. Uses the NVIDIA
driver's library, which is looked for when the first object is made; no CUDA library is linked.
"""

from typing import Any

from inlay.core.errors import ResourceError
from inlay.kernels import _backend
from inlay.kernels._arrays import Array


class StreamWords:
    """The words of a `HandOver` for streams of one device.

    Args:
        words_L2: uint32, those of the hand-over; page-locked, and kept as long as this object is.
        device: its number among CUDA's.

    Raises:
        ResourceError: there is no driver, it is older than CUDA 11.7, or the device does not reach
            this memory.
        ArgumentError: wrong shape, dtype or layout.

    Streams that wait are ended by the host's answer alone, which a `HandOver` gives in any case:
    also where the host's part fails, and after `cancel`.

    Cost: a call 1 to 2 us of the caller; it does not wait for the device.
    Source: stream memory operations of the CUDA driver API, which since 11.7 all devices have.
    """

    def __init__(self, words_L2: Array, device: int) -> None:
        if not _backend.is_native:
            raise ResourceError(f"words in streams need the compiled core: {_backend.problem}")
        self._native: Any = _backend.ops.StreamWords(words_L2, device)

    def ask(self, layer: int, stream: int) -> None:
        """Have a stream set *asked* once what it was given before is done and seen by the host.

        Args:
            stream: the driver's handle; 0 is the device's default stream.

        Raises:
            EngineError: the driver refuses.
        """
        self._native.ask(layer, stream)

    def wait_answer(self, layer: int, stream: int) -> None:
        """Have a stream wait until the layer is answered. Raises as `ask`."""
        self._native.wait_answer(layer, stream)
