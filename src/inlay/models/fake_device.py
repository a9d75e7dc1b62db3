"""A device that computes on the CPU and takes the time, and has the memory, that it is told to.

    fake = FakeOps("fake:0", FakeDevice(latency_s=20e-6, bandwidth_gbs=1000, memory_bytes=1 << 30))
    model = load_model(directory, placement=placement, backends={"fake:0": fake})

Its operations run in a thread, in order, as those of a GPU's stream do, and who calls goes on at
once. Each takes a fixed time and that of reading its weights; where the host looks (rows for its
experts, results) the thread waits until that time has passed. For tests and studies of what a GPU
shares with the host, on a machine without one.
"""

import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inlay import kernels
from inlay.core.errors import ConfigError
from inlay.core.model_shape import Activation, RouterShape
from inlay.core.units import format_bytes
from inlay.models.embedding import Embedding
from inlay.models.hand_over import HandOverLine
from inlay.models.ops import AttentionSpec, HostArray
from inlay.models.rank_group import RankGroup
from inlay.models.torch_experts import Slots, SlottedExperts, TorchExperts, filler
from inlay.models.torch_ops import TorchOps

_SETTLE_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class FakeDevice:
    """What it is like.

    Attributes:
        latency_s: of each operation.
        bandwidth_gbs: of its memory (10^9 bytes/s), by which weights and cache are read.
        link_gbs: to the host's memory, for rows and for experts that are brought.
        memory_bytes: for weights, cache and activations.
    """

    latency_s: float = 0.0
    bandwidth_gbs: float = inf
    link_gbs: float = inf
    memory_bytes: int = 1 << 40

    def __post_init__(self) -> None:
        for name in ("bandwidth_gbs", "link_gbs", "memory_bytes"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.latency_s < 0:
            raise ConfigError(f"latency_s must be at least 0, got {self.latency_s}")


class _Stream:
    """One thread that runs calls in order, on a clock of its own."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], float] | threading.Event | None]
        self._calls = queue.SimpleQueue()
        self._over_at = 0.0  # when the last operation ends
        self._failure: Exception | None = None
        threading.Thread(target=self._run, name="fake-device", daemon=True).start()

    def enqueue(self, call: Callable[[], float]) -> None:
        """Have it run after all others; it returns the seconds that it takes."""
        self._calls.put(call)

    def sleep_until_over(self) -> None:
        """Wait for the clock; from a call of the stream."""
        left = self._over_at - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def mark(self) -> threading.Event:
        """Set when all calls so far are over, or were left out."""
        over = threading.Event()
        self._calls.put(over)
        return over

    def settle(self) -> None:
        """Wait until all is over. Raises what a call raised; then calls run again."""
        _wait(self.mark())
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the thread."""
        self._calls.put(None)

    def _run(self) -> None:
        torch.get_num_threads()  # else the first products have others than those that follow
        with torch.inference_mode():
            while (call := self._calls.get()) is not None:
                if isinstance(call, threading.Event):
                    self.sleep_until_over()
                    call.set()
                    continue
                if self._failure is not None:
                    continue  # what follows a failure is left out
                try:
                    took_s = call()
                except Exception as error:
                    self._failure = error
                    continue
                self._over_at = max(self._over_at, time.perf_counter()) + took_s


class FakeOps(TorchOps):
    """See `inlay.models.ops.Ops`; what it computes is `TorchOps` on the CPU.

    Args:
        name: such as `fake:0`.
    """

    def __init__(self, name: str, device: FakeDevice) -> None:
        super().__init__(torch.device("cpu"))
        self.like = device
        self._name = name
        self._taken_bytes = 0
        self._stream = _Stream()
        weakref.finalize(self, self._stream.close)

    @property
    def name(self) -> str:
        """As the protocol says."""
        return f"the fake device {self._name}"

    @property
    def device(self) -> str:
        """As the protocol says."""
        return self._name

    def free_bytes(self) -> int:
        """As the protocol says."""
        return self.like.memory_bytes - self._taken_bytes

    def _counted(self, tensor: Tensor) -> Tensor:
        """Memory of the device, until nobody has it any more."""
        nbytes = tensor.nbytes
        if nbytes > self.free_bytes():
            # In PyTorch's words for a GPU.
            raise torch.OutOfMemoryError(
                f"{self._name} out of memory. Tried to allocate {format_bytes(nbytes)}. It has "
                f"{format_bytes(self.like.memory_bytes)}, of which "
                f"{format_bytes(max(0, self.free_bytes()))} are free."
            )
        self._taken_bytes += nbytes
        weakref.finalize(tensor, self._release, nbytes)
        return tensor

    def _release(self, nbytes: int) -> None:
        self._taken_bytes -= nbytes

    def empty(self, rows: int, width: int, dtype: str = "float32") -> Tensor:
        """As the protocol says; counted."""
        return self._counted(super().empty(rows, width, dtype))

    def zeros(self, size: tuple[int, ...], dtype: str) -> Tensor:
        """As the protocol says; counted."""
        return self._counted(super().zeros(size, dtype))

    def vector(self, values: HostArray) -> Tensor:
        """As the protocol says; counted."""
        return self._counted(super().vector(values))

    def _empty(self, size: tuple[int, ...], weight_format: str) -> Tensor:
        return self._counted(super()._empty(size, weight_format))

    def residents(self, host: kernels.ExpertWeights, slots: int) -> SlottedExperts:
        """As the protocol says; bringing one takes as long as the link needs."""
        residents = super().residents(host, slots)
        return _LinkedResidents(residents.experts, host, self.like.link_gbs)

    def _do(self, call: Callable[..., Any], *args: Any, nbytes: float = 0.0, **more: Any) -> None:
        seconds = self.like.latency_s + nbytes / (self.like.bandwidth_gbs * 1e9)

        def run() -> float:
            call(*args, **more)
            return seconds

        self._stream.enqueue(run)

    # Operations, in the order of the stream

    def embed(self, embedding: Embedding, step: Any, out_TM: Tensor) -> None:
        """As the protocol says."""
        self._do(super().embed, embedding, step, out_TM)

    def rms_norm(self, x_TM: Tensor, weight_M: Tensor, eps: float, out_TM: Tensor) -> None:
        """As the protocol says."""
        self._do(super().rms_norm, x_TM, weight_M, eps, out_TM)

    def linear(
        self, x_TM: Tensor, weight: Any, out_TN: Tensor, *, accumulate: bool = False
    ) -> None:
        """As the protocol says."""
        nbytes = _held_bytes(weight.weight_NM, weight.dtype)
        self._do(super().linear, x_TM, weight, out_TN, nbytes=nbytes, accumulate=accumulate)

    def linear_heads(self, x_THK: Tensor, weight: Any, out_THN: Tensor) -> None:
        """As the protocol says."""
        nbytes = _held_bytes(weight.weight_NM, weight.dtype)
        self._do(super().linear_heads, x_THK, weight, out_THN, nbytes=nbytes)

    def add_adapters(
        self, x_TK: Tensor, adapters: Sequence[tuple[Any, int, int]], out_TN: Tensor
    ) -> None:
        """As the protocol says."""
        nbytes = sum(adapter.nbytes for adapter, _, _ in adapters)
        self._do(super().add_adapters, x_TK, adapters, out_TN, nbytes=nbytes)

    def rope_and_store(self, qkv_TN: Tensor, spec: AttentionSpec, step: Any) -> None:
        """As the protocol says."""
        self._do(super().rope_and_store, qkv_TN, spec, step)

    def attention(self, q_THD: Tensor, spec: AttentionSpec, step: Any, out_THD: Tensor) -> None:
        """As the protocol says."""
        cached = int(step.batch.context_lens_B.sum())
        nbytes = cached * step.pool.data[0, 0].nbytes // step.pool.format.page_tokens
        self._do(super().attention, q_THD, spec, step, out_THD, nbytes=nbytes)

    def route(
        self,
        logits_TE: Tensor,
        router: RouterShape,
        correction_E: Tensor | None,
        out_ids_TK: Tensor,
        out_weights_TK: Tensor,
    ) -> None:
        """As the protocol says."""
        self._do(super().route, logits_TE, router, correction_E, out_ids_TK, out_weights_TK)

    def moe(
        self,
        x_TM: Tensor,
        experts: TorchExperts | SlottedExperts | None,
        ids_TK: Tensor,
        weights_TK: Tensor,
        out_TM: Tensor,
        *,
        activation: Activation,
        shared: TorchExperts | None,
        adapters: Sequence[Any] = (),
    ) -> None:
        """As the protocol says; the experts that are chosen are read."""
        compute = super().moe

        def run() -> float:
            compute(
                x_TM,
                experts,
                ids_TK,
                weights_TK,
                out_TM,
                activation=activation,
                shared=shared,
                adapters=adapters,
            )
            nbytes = 0.0 if shared is None else _expert_bytes(shared) * len(shared.down_EMF)
            if isinstance(experts, SlottedExperts):
                here = experts.slots_of(ids_TK)
                nbytes += len(set(here[here >= 0].tolist())) * _expert_bytes(experts.experts)
            elif experts is not None:
                nbytes += len(set(ids_TK.flatten().tolist())) * _expert_bytes(experts)
            return self.like.latency_s + nbytes / (self.like.bandwidth_gbs * 1e9)

        self._stream.enqueue(run)

    def gate_mul(self, gate_up_T2F: Tensor, activation: Activation, out_TF: Tensor) -> None:
        """As the protocol says."""
        self._do(super().gate_mul, gate_up_T2F, activation, out_TF)

    def add(self, x_TM: Tensor, out_TM: Tensor) -> None:
        """As the protocol says."""
        self._do(super().add, x_TM, out_TM)

    def scale(self, x_TN: Tensor, factor: float | NDArray[np.float32]) -> None:
        """As the protocol says."""
        self._do(super().scale, x_TN, factor)

    def bound(self, x_TN: Tensor, limit: float) -> None:
        """As the protocol says."""
        self._do(super().bound, x_TN, limit)

    def copy(self, values: Tensor, out: Tensor) -> None:
        """As the protocol says."""
        self._do(super().copy, values, out)

    def clear(self, array: Tensor) -> None:
        """As the protocol says."""
        self._do(super().clear, array)

    def sum_ranks(self, group: RankGroup, array: Tensor) -> None:
        """As the protocol says."""
        self._do(super().sum_ranks, group, array)

    def take(self, array: Tensor | NDArray[Any], out: Tensor) -> None:
        """As the protocol says."""
        self._do(super().take, array, out)

    def ask(
        self, line: HandOverLine, layer: int, x_TM: Tensor, ids_TK: Tensor, w_TK: Tensor
    ) -> None:
        """As the protocol says."""
        write = super().ask
        rows_s = x_TM.nbytes / (self.like.link_gbs * 1e9)

        def run() -> float:
            self._stream.sleep_until_over()
            if rows_s:
                time.sleep(rows_s)
            write(line, layer, x_TM, ids_TK, w_TK)
            return 0.0

        self._stream.enqueue(run)

    def add_answer(self, line: HandOverLine, layer: int, out_TM: Tensor) -> None:
        """As the protocol says."""
        rows_s = out_TM.nbytes / (self.like.link_gbs * 1e9)
        add = super().add_answer

        def run() -> float:
            add(line, layer, out_TM)
            return rows_s

        self._stream.enqueue(run)

    def _mask(self, ids_TK: Tensor, keep_T: Tensor, out_TK: Tensor) -> None:
        self._do(super()._mask, ids_TK, keep_T, out_TK)

    def mark(self) -> Callable[[], None]:
        """As the protocol says."""
        over = self._stream.mark()
        return lambda: _wait(over)

    # Where the host looks

    def wanted_rows(self, x_TM: Tensor, step: Any) -> Tensor:
        """As the protocol says."""
        rows_RM = self.empty(len(step.logit_rows_R), x_TM.shape[1])
        gather = super().wanted_rows
        self._do(lambda: rows_RM.copy_(gather(x_TM, step)))
        return rows_RM

    def gather_ranks(self, group: RankGroup, part_RV: Tensor, columns: int) -> Tensor:
        """As the protocol says."""
        self._stream.settle()
        return super().gather_ranks(group, part_RV, columns)

    def to_numpy(self, array: Tensor) -> NDArray[Any]:
        """As the protocol says."""
        self._stream.settle()
        return super().to_numpy(array)

    def leave(self, array: Tensor) -> Tensor:
        """As the protocol says."""
        self._stream.settle()
        return array

    def settle(self) -> None:
        """As the protocol says."""
        self._stream.settle()


class _LinkedResidents(SlottedExperts):
    """Experts that come over a link."""

    def __init__(self, experts: Slots, host: kernels.ExpertWeights, link_gbs: float) -> None:
        bring = filler(experts, host)
        super().__init__(experts, host.num_experts, bring, torch.device("cpu"))
        self._expert_s = host.nbytes / host.num_experts / (link_gbs * 1e9)

    def fill(self, slot: int, expert: int) -> None:
        """As the protocol says."""
        until = time.perf_counter() + self._expert_s
        super().fill(slot, expert)
        left = until - time.perf_counter()
        if left > 0:
            time.sleep(left)


def _wait(event: threading.Event) -> None:
    if not event.wait(_SETTLE_TIMEOUT_S):
        raise TimeoutError(f"the fake device has not come so far within {_SETTLE_TIMEOUT_S:g} s")


def _held_bytes(weight: Tensor, dtype: torch.dtype) -> int:
    """What weights of that dtype take, though the CPU computes in float32."""
    return weight.numel() * dtype.itemsize


def _expert_bytes(experts: TorchExperts) -> int:
    return _held_bytes(experts.down_EMF[0], experts.dtype) * 3
