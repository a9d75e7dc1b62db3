"""The way between a GPU and the host's experts: what a layer's hand-over takes, and experts' bytes.

Shapes: T rows, M model width, K experts of a token, L layers.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.kernels.gpu_sides import host_experts
from benchmarks.kernels.layers import LayerShape
from inlay import kernels
from inlay.models.gpu.ops import GpuOps
from inlay.models.hand_over import HandOverLine

_WARM_STEPS = 5


def hand_over_us(
    shape: LayerShape, rows: int, layers: int, device: torch.device, steps: int
) -> list[float]:
    """Microseconds of a layer: rows to the host, its answer for experts of next to no work, and
    back, one value per step. On a GPU the layers are a CUDA graph, as a decode step is.
    """
    ops = GpuOps(device)
    host = host_experts(shape, shape.experts, "int8")
    line = HandOverLine(
        [host] * layers,
        kernels.SILU,
        max_rows=rows,
        per_token=shape.top_k,
        page_locked=device.type == "cuda",
        all_rows=True,
    )
    x_TM = torch.randn(rows, shape.hidden, device=device)
    out_TM = torch.zeros_like(x_TM)
    ids_TK = torch.rand(rows, shape.experts, device=device).topk(shape.top_k).indices.int()
    routing_TK = torch.rand(rows, shape.top_k, device=device)
    on_host_LE = np.ones((layers, shape.experts), bool)

    def all_layers() -> None:
        for layer in range(layers):
            ops.ask(line, layer, x_TM, ids_TK, routing_TK)
            ops.add_answer(line, layer, out_TM)

    def step_us(run: Callable[[], None]) -> float:
        begin_s = time.perf_counter()
        line.begin(on_host_LE, np.ones(rows, bool), 0)
        try:
            run()
            ops.settle()
            line.end()
        except BaseException:
            line.abort()
            raise
        return 1e6 * (time.perf_counter() - begin_s) / layers

    step_us(all_layers)  # what a first step makes is no part of a recording
    run = all_layers
    if device.type == "cuda":
        run = ops.recorder().record(all_layers)
    return [step_us(run) for _ in range(_WARM_STEPS + steps)][_WARM_STEPS:]


def bring_gbs(
    shape: LayerShape, weight_format: str, device: torch.device, repeats: int
) -> list[float]:
    """GB/s at which all experts of a layer come to a device, as they do for a prompt's step."""
    host = host_experts(shape, shape.experts, weight_format)
    there = GpuOps(device).residents(host, shape.experts)
    rates = []
    for _ in range(repeats + 1):
        begin_s = time.perf_counter()
        for expert in range(shape.experts):
            there.fill(expert, expert)
        rates.append(there.nbytes / (time.perf_counter() - begin_s) / 1e9)
    return rates[1:]
