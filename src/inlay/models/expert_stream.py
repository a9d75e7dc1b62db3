"""Brings the host's experts to a device for one step each, layer by layer.

    stream.start(groups)
    for experts in stream.groups(place): ...  # of the first layer, then of the next one

Two buffers take turns: a thread fills one while the device computes with the other. A group is as
many experts of a layer as a buffer holds.

Source: streamed prefill of KTransformers (`--kt-gpu-prefill-token-threshold`), there a layer at a
time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay import kernels
from inlay.models.hand_over import Residents
from inlay.models.ops import Ops

_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class _Group:
    """Some experts of a layer."""

    place: int
    experts: NDArray[np.int64]

    def slots(self, count: int) -> NDArray[np.int32]:
        """Where each of a layer's experts is in the buffer."""
        slot_of_E = np.full(count, -1, np.int32)
        slot_of_E[self.experts] = np.arange(len(self.experts), dtype=np.int32)
        return slot_of_E


class ExpertStream:
    """Two buffers on a device.

    Args:
        host_L: all experts of each layer.
        slots: of a buffer.

    Raises:
        ResourceError: the device has too little memory.
    """

    def __init__(self, ops: Ops, host_L: Sequence[kernels.ExpertWeights], slots: int) -> None:
        self._ops, self._host_L, self._slots = ops, host_L, slots
        self._buffers = [ops.residents(host_L[0], slots) for _ in range(2)]
        self._waiting: deque[_Group] = deque()
        self._coming: deque[tuple[_Group, Residents, Future[None]]] = deque()
        self._thread = ThreadPoolExecutor(1, "expert-stream")

    def seconds_per_expert(self) -> float:
        """What bringing one takes, as just measured with a buffer of them."""
        group = _Group(0, np.arange(min(self._slots, self._host_L[0].num_experts)))
        began = time.perf_counter()
        self._fill(group, self._buffers[0], None)
        return (time.perf_counter() - began) / len(group.experts)

    def start(self, experts_L: Sequence[tuple[int, NDArray[np.int64]]]) -> None:
        """Begin a step, in which these experts of these layers come, in this order."""
        self._waiting.extend(
            _Group(place, part)
            for place, experts in experts_L
            for part in np.split(experts, range(self._slots, len(experts), self._slots))
            if len(part)
        )
        for buffer in self._buffers:
            self._bring(buffer, None)

    def groups(self, place: int) -> Iterator[Residents]:
        """A layer's experts, group after group: each until the next one is asked for."""
        while self._coming and self._coming[0][0].place == place:
            group, buffer, coming = self._coming.popleft()
            coming.result(_TIMEOUT_S)
            buffer.show(group.slots(self._host_L[place].num_experts))
            yield buffer
            self._bring(buffer, self._ops.mark())

    def stop(self) -> None:
        """Nothing more of this step comes."""
        self._waiting.clear()
        wait([coming for _, _, coming in self._coming], _TIMEOUT_S)
        self._coming.clear()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _bring(self, buffer: Residents, unused: Callable[[], None] | None) -> None:
        if self._waiting:
            group = self._waiting.popleft()
            coming = self._thread.submit(self._fill, group, buffer, unused)
            self._coming.append((group, buffer, coming))

    def _fill(self, group: _Group, buffer: Residents, unused: Callable[[], None] | None) -> None:
        if unused is not None:
            unused()
        buffer.bind(self._host_L[group.place])
        for slot, expert in enumerate(group.experts.tolist()):
            buffer.fill(slot, expert)
