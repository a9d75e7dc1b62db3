"""experts/deferral: what deferring experts gains, beside what was expected of it.

A random model's layers are on a fake device whose operations are as slow as makes the time of a
layer the wanted part of the host's. It computes nothing, since a GPU would take no processor time
for it, and draws each token's experts; the host's experts are computed. Each repeat first times
steps without deferral, as an engine does when it starts, and says from them what deferral should
gain; then steps with every number of deferred experts take turns.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.case import Run
from benchmarks.models.gguf_folder import gguf_folder
from benchmarks.models.random_model import RandomModel
from benchmarks.models.write_gguf import write_gguf
from benchmarks.triples import Samples
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
OPERATIONS = 8  # of a layer, each with the device's latency, before it asks
EXPECTED = "the gain expected"
PAGES = 128


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """What one repeat measured.

    Attributes:
        layer: without deferral.
        expected: gain by number of deferred experts.
        step_s: of a decode step, the same, and without deferral.
        chosen: deferred experts by that.
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
    with one_core(), tempfile.TemporaryDirectory() as name:
        file = Path(name) / "weights.gguf"
        write_gguf(file, model, experts="BF16", rest="BF16")
        folder = gguf_folder(Path(name) / "model", file)
        study = Study(folder, model.shape.layers, run.seeds[0])
        numbers = sorted({params["deferred"] for params in run.params("gain")})
        for params in run.params("auto_of_best"):
            study.slow_down(params["device_time"])
            repeats = [study.repeat(numbers, run.workload["steps"]) for _ in range(run.repeats)]
            yield from samples(run, params["device_time"], numbers, repeats)


@contextmanager
def one_core() -> Iterator[None]:
    """The host computes on one core, and what the fake device computes takes no second one."""
    threads = kernels.num_threads(), torch.get_num_threads()
    kernels.set_num_threads(1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        kernels.set_num_threads(threads[0])
        torch.set_num_threads(threads[1])


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
    """The model, and a request that decodes."""

    def __init__(self, folder: Path, layers: int, seed: int) -> None:
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
        (device,) = (one for one in threading.enumerate() if one.name == "fake-device")
        assert device.ident is not None
        self._device_clock = time.pthread_getcpuclockid(device.ident)

    def slow_down(self, device_time: float) -> None:
        """Let the device take so many times what the host takes for a layer."""
        (layer, *_) = layer_times(self._model, self._driver.pool)
        wanted_s = device_time * layer.host_s(layer.host_experts)
        self._ops.like = FakeDevice(latency_s=wanted_s / OPERATIONS)

    def repeat(self, numbers: Sequence[int], steps: int) -> Repeat:
        """Expect, then measure."""
        layers = layer_times(self._model, self._driver.pool)
        device_s, step_s = self._step_times(numbers, steps)
        return Repeat(
            layer=layers[0],
            expected={number: gain(layers, number) for number in numbers},
            step_s=step_s,
            chosen=choose_deferred(layers, most_deferred(self._model.shape.experts_per_token)),
            device_cpu_share=device_s / (steps * sum(step_s.values())),
        )

    def _device_busy_s(self) -> float:
        """Processor time that the device took, but for waiting for answers."""
        return time.clock_gettime(self._device_clock) - self._ops.waited_s

    def _step_times(self, numbers: Sequence[int], steps: int) -> tuple[float, dict[int, float]]:
        """Processor time of the device, and of a step by deferred experts; all take turns."""
        total_s = dict.fromkeys((0, *numbers), 0.0)
        sequence = self._driver.add([0] * (1 + steps * len(total_s)))
        self._driver.step([(sequence, 1)])
        busy_s = self._device_busy_s()
        for _ in range(steps):
            for number in total_s:
                self._share.deferred = number
                began = time.perf_counter()
                self._driver.step([(sequence, 1)])
                total_s[number] += time.perf_counter() - began
        busy_s = self._device_busy_s() - busy_s
        self._share.deferred = 0
        return busy_s, {number: seconds / steps for number, seconds in total_s.items()}


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
    best = max(numbers, key=lambda number: median(one.gain(number) for one in repeats))
    yield of("best_gain", [one.gain(best) for one in repeats])
    yield of("auto_of_best", [one.gain(one.chosen) / one.gain(best) for one in repeats])
    yield of("auto_deferred", [one.chosen for one in repeats])
    layers = [one.layer for one in repeats]
    host_s = [one.host_s(one.host_experts) for one in layers]
    yield of("layer_ms", [1e3 * one for one in host_s], of="host")
    yield of("layer_ms", [1e3 * one.before_s for one in layers], of="device")
    yield of("device_cpu_share", [one.device_cpu_share for one in repeats])
