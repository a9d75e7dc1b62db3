"""experts/deferral: what deferring experts gains, beside what was expected of it.

A random model's layers are on a fake device whose operations are as slow as makes the time of a
layer the wanted part of the host's. It computes nothing, since a GPU would take no processor time
for it, and draws each token's experts; the host's experts are computed. Each repeat first times
steps without deferral, as an engine does when it starts, and says from them what deferral should
gain; then steps with every number of deferred experts take turns; then it times once more, and
what is expected is the mean. Where the two differ by more than `NOISE` the machine has changed, and
the repeat is dropped.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.case import CaseError, Run
from benchmarks.models.gguf_folder import gguf_folder
from benchmarks.models.random_model import RandomModel
from benchmarks.models.write_gguf import write_gguf
from benchmarks.triples import NOISE, Samples
from inlay import kernels
from inlay.core.deferral import LayerTime, choose_deferred, gain, most_deferred
from inlay.core.model_shape import RouterShape
from inlay.core.placement import Placement
from inlay.engine.deferral import layer_times
from inlay.models.fake_device import FakeDevice, FakeOps
from inlay.models.hand_over import HandOverLine
from inlay.models.model import load_model
from tests.support.model_driver import ModelDriver

DEVICE = "fake:0"
FORMAT = "bfloat16"
PER_TOKEN = 8  # experts
OPERATIONS = 8  # of a layer, each with the device's latency, before it asks
ADJUSTMENTS = 3
EXPECTED = "the gain expected"
PAGES = 16


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """What one repeat measured.

    Attributes:
        layer: what it took without deferral.
        expected: gain by number of deferred experts.
        step_s: of a decode step, by the same and without deferral.
        chosen: how many would be deferred.
        device_cpu_share: of the time of all steps.
    """

    layer: LayerTime
    expected: dict[int, float]
    step_s: dict[int, float]
    chosen: int
    device_cpu_share: float

    def gain(self, deferred: int) -> float:
        """Steps in the same time, over those without deferral."""
        return self.step_s[0] / self.step_s[deferred]


def measure(run: Run) -> Generator[Samples, None, None]:
    """One speed of the device after the other."""
    model = RandomModel(run.workload["model"], run.seeds[0], **run.workload["changed"])
    with one_core_each() as processor, tempfile.TemporaryDirectory() as name:
        file = Path(name) / "weights.gguf"
        write_gguf(file, model, experts="BF16", rest="BF16")
        folder = gguf_folder(Path(name) / "model", file)
        study = Study(folder, model.shape.layers, run.seeds[0], processor)
        numbers = sorted({params["deferred"] for params in run.params("gain")})
        for params in run.params("auto_of_best"):
            steps, device_time = run.workload["steps"], params["device_time"]
            repeats = study.repeats(device_time, numbers, steps, run.repeats)
            yield from samples(run, device_time, numbers, repeats)


@contextmanager
def one_core_each() -> Iterator[int]:
    """The host has the first processor, the fake device's thread is to have the other, which this
    gives. Left to the system they meet on one: the device looks for its answer every 20 us, and
    each time the host's experts stop, which took 0.6 ms of a layer's 2.5.

    Raises:
        CaseError: there are no two.
    """
    threads = kernels.num_threads(), torch.get_num_threads()
    processors = os.sched_getaffinity(0)
    if len(processors) < 2:
        raise CaseError("experts/deferral needs two processors")
    host, device, *_ = sorted(processors)
    kernels.set_num_threads(1)
    torch.set_num_threads(1)
    move({host})
    try:
        yield device
    finally:
        move(processors)
        kernels.set_num_threads(threads[0])
        torch.set_num_threads(threads[1])


def move(processors: set[int]) -> None:
    """All threads of this process; new ones go with them."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), processors)


class IdleOps(FakeOps):
    """A fake device that takes the time of its operations and leaves them out.

    Attributes:
        waited_s: processor time of its thread that went into waiting for answers.
    """

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, FakeDevice())
        self.waited_s = 0.0
        self._draw = np.random.default_rng(seed)

    def _do(self, call: Callable[..., Any], *args: Any, nbytes: float = 0.0, **more: Any) -> None:
        super()._do(lambda: None, nbytes=nbytes)

    def route(
        self,
        logits_TE: Tensor,
        router: RouterShape,
        correction_E: Tensor | None,
        out_ids_TK: Tensor,
        out_weights_TK: Tensor,
    ) -> None:
        """Any experts, which weigh the same."""

        def draw() -> None:
            (tokens, experts), chosen = logits_TE.shape, out_ids_TK.shape[1]
            for t in range(tokens):
                ids_K = self._draw.permutation(experts)[:chosen]
                out_ids_TK[t] = torch.from_numpy(ids_K)
            out_weights_TK.fill_(1 / chosen)

        super()._do(draw)

    def add_answer(self, line: HandOverLine, layer: int, out_TM: Tensor) -> None:
        """As the protocol says; and on the clock."""

        def clock(sign: int) -> float:
            self.waited_s += sign * time.thread_time()
            return 0.0

        self._stream.enqueue(lambda: clock(-1))
        super().add_answer(line, layer, out_TM)
        self._stream.enqueue(lambda: clock(1))


class Study:
    """The model, and a request that decodes.

    Args:
        processor: of the device's thread.
    """

    def __init__(self, folder: Path, layers: int, seed: int, processor: int) -> None:
        self._ops = IdleOps(DEVICE, seed)
        model = load_model(
            folder,
            weight_format=FORMAT,
            placement=Placement.on(DEVICE, layers),
            backends={DEVICE: self._ops},
        )
        assert model.host_share is not None
        self._model, self._share = model, model.host_share
        self._driver = ModelDriver(model, PAGES)
        self._sequence = self._driver.add([])
        (device,) = (one for one in threading.enumerate() if one.name == "fake-device")
        assert device.ident is not None and device.native_id is not None
        os.sched_setaffinity(device.native_id, {processor})
        self._device_clock = time.pthread_getcpuclockid(device.ident)

    def repeats(
        self, device_time: float, numbers: Sequence[int], steps: int, wanted: int
    ) -> list[Repeat]:
        """So many, or none where most were taken while the machine changed its speed.

        Args:
            device_time: of a layer, over the host's time for it.
            numbers: of deferred experts.
        """
        for _ in range(ADJUSTMENTS):
            self._adjust(device_time, self._layers())
        kept: list[Repeat] = []
        for _ in range(2 * wanted):
            before = self._layers()
            busy, step_s = self._step_times(numbers, steps)
            after = self._layers()
            self._adjust(device_time, after)
            times = [one[0].before_s + one[0].host_s(PER_TOKEN) for one in (before, after)]
            if max(times) - min(times) > NOISE * max(times):
                continue
            kept.append(
                Repeat(
                    layer=before[0],
                    expected={n: fmean((gain(before, n), gain(after, n))) for n in numbers},
                    step_s=step_s,
                    chosen=choose_deferred(before, most_deferred(PER_TOKEN)),
                    device_cpu_share=busy,
                )
            )
            if len(kept) == wanted:
                return kept
        return []

    def _layers(self) -> list[LayerTime]:
        """Without deferral, as an engine measures them."""
        return layer_times(self._model, self._driver.pool)

    def _adjust(self, device_time: float, layers: Sequence[LayerTime]) -> None:
        """Bring the device nearer to the time it should take."""
        missing_s = device_time * layers[0].host_s(PER_TOKEN) - layers[0].before_s
        latency_s = self._ops.like.latency_s + missing_s / OPERATIONS
        self._ops.like = FakeDevice(latency_s=max(0.0, latency_s))

    def _device_busy_s(self) -> float:
        """Processor time that the device took, but for waiting for answers."""
        return time.clock_gettime(self._device_clock) - self._ops.waited_s

    def _step_times(self, numbers: Sequence[int], steps: int) -> tuple[float, dict[int, float]]:
        """Share of the time that the device is busy, and medians by deferred experts."""
        step_s: dict[int, list[float]] = {number: [] for number in (0, *numbers)}
        sequence = self._sequence
        sequence.tokens, sequence.computed = [0] * (1 + steps * len(step_s)), 0
        self._driver.step([(sequence, 1)])
        busy_s = self._device_busy_s()
        for _ in range(steps):
            for number, times in step_s.items():
                self._share.deferred = number
                began = time.perf_counter()
                self._driver.step([(sequence, 1)])
                times.append(time.perf_counter() - began)
        busy_s = self._device_busy_s() - busy_s
        self._share.deferred = 0
        share = busy_s / sum(map(sum, step_s.values()))
        return share, {number: median(times) for number, times in step_s.items()}


def samples(
    run: Run, device_time: float, numbers: Sequence[int], repeats: Sequence[Repeat]
) -> Iterator[Samples]:
    """All measurements with this device."""
    params = {"device_time": device_time}

    def of(name: str, values: Sequence[float], **more: object) -> Samples:
        return Samples(name=name, values=values, params={**params, **more}, seeds=run.seeds)

    for number in numbers:
        gains = [one.gain(number) for one in repeats]
        expected = [one.expected[number] for one in repeats]
        yield replace(of("gain", gains, deferred=number), limit=(EXPECTED, expected))
        errors = [abs(one / other - 1) for one, other in zip(gains, expected, strict=True)]
        yield of("gain_error", errors, deferred=number)
    if not repeats:
        return
    best = max(numbers, key=lambda number: median(one.gain(number) for one in repeats))
    yield of("best_gain", [one.gain(best) for one in repeats])
    yield of("auto_of_best", [one.gain(one.chosen) / one.gain(best) for one in repeats])
    yield of("auto_deferred", [one.chosen for one in repeats])
    layers = [one.layer for one in repeats]
    host_s = [one.host_s(one.host_experts) for one in layers]
    yield of("layer_ms", [1e3 * one for one in host_s], of="host")
    yield of("layer_ms", [1e3 * one.before_s for one in layers], of="device")
    yield of("device_cpu_share", [one.device_cpu_share for one in repeats])
