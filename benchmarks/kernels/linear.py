"""kernels/linear: dense layers beside the roofline and PyTorch's products (oneDNN, FBGEMM).

Enough copies of a layer take turns that no weights are in a cache from the call before. PyTorch
runs in this process with as many threads; its threads spin for a moment after a call, so the next
side waits.
"""

import math
import statistics
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from benchmarks.case import Run
from benchmarks.kernels import limits
from benchmarks.triples import Comparison, Limit
from inlay import kernels

TOKENS_PER_SIDE = 16  # shorter calls are repeated
MAX_CALLS = 8
ALL_COPIES_BYTES = 200 * 10**6
IDLE_S = 0.005

Call = Callable[[NDArray[np.float32]], object]


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per layer, format and number of tokens."""
    torch.set_num_threads(kernels.num_threads())
    torch.set_grad_enabled(False)
    made: tuple[object, list[Call], dict[str, list[Call]], int] | None = None
    for params in run.params("forward"):
        if params["isa"] != kernels.selected_isa():
            continue
        layer = (params["in_features"], params["out_features"], params["format"])
        if made is None or made[0] != layer:
            made = None
            made = (layer, *make_layers(run, params))
        yield compare(run, params, *made[1:])


def make_layers(
    run: Run, params: Mapping[str, Any]
) -> tuple[list[Call], dict[str, list[Call]], int]:
    """Copies of one layer: our calls, the peers' calls, and the bytes of one of ours."""
    rng = np.random.default_rng(run.seeds[0])
    side = (params["out_features"], params["in_features"])
    weight_NK = rng.standard_normal(side, np.float32) * np.float32(0.02)
    first = kernels.pack_linear(weight_NK, params["format"])
    copies = max(2, math.ceil(ALL_COPIES_BYTES / first.nbytes))
    packed = [first, *(kernels.pack_linear(weight_NK, params["format"]) for _ in range(copies - 1))]
    ours = [our_call(weight) for weight in packed]
    make_peer = PEERS.get(params["format"].split(":")[0])
    peers: dict[str, list[Call]] = {}
    if make_peer:
        label = f"torch {torch.__version__} {make_peer.__name__}"
        peers = {label: [make_peer(weight_NK) for _ in range(copies)]}
    return ours, peers, first.nbytes


def our_call(weight: kernels.LinearWeight) -> Call:
    """Our product; the caller of a kernel owns its output."""
    outputs: dict[int, NDArray[np.float32]] = {}

    def call(x_TK: NDArray[np.float32]) -> None:
        if len(x_TK) not in outputs:
            outputs[len(x_TK)] = np.empty((len(x_TK), weight.shape[0]), np.float32)
        kernels.linear(x_TK, weight, outputs[len(x_TK)])

    return call


def bfloat16(weight_NK: NDArray[np.float32]) -> Call:
    """oneDNN's product; activations are given in bf16, so rounding them costs PyTorch nothing."""
    weight = torch.from_numpy(weight_NK).bfloat16()
    rounded: dict[int, torch.Tensor] = {}

    def call(x_TK: NDArray[np.float32]) -> torch.Tensor:
        if len(x_TK) not in rounded:
            rounded[len(x_TK)] = torch.from_numpy(x_TK).bfloat16()
        return F.linear(rounded[len(x_TK)], weight)

    return call


def int8_dynamic(weight_NK: NDArray[np.float32]) -> Call:
    """PyTorch's dynamic quantisation: int8 weights, activations quantised in the call."""
    rows, columns = weight_NK.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        layer = torch.ao.nn.quantized.dynamic.Linear(columns, rows)
    weight = torch.from_numpy(weight_NK)
    scale = float(weight.abs().max()) / 127
    layer.set_weight_bias(torch.quantize_per_tensor(weight, scale, 0, torch.qint8), None)
    return lambda x_TK: layer(torch.from_numpy(x_TK))


PEERS = {"bfloat16": bfloat16, "int8": int8_dynamic}


def compare(
    run: Run,
    params: Mapping[str, Any],
    ours: list[Call],
    peers: Mapping[str, list[Call]],
    nbytes: int,
) -> Comparison:
    """The sides of one point; each layer has been called once before it is handed out."""
    tokens, inner = params["tokens"], params["in_features"]
    x_TK = np.random.default_rng(run.seeds).standard_normal((tokens, inner), np.float32)
    calls = min(MAX_CALLS, max(1, TOKENS_PER_SIDE // tokens))

    def side(layers: list[Call], idle_s: float = 0.0) -> Callable[[], float]:
        for layer in layers:
            layer(x_TK)
        done = 0

        def median_ms() -> float:
            nonlocal done
            taken = []
            for _ in range(calls):
                layer = layers[done % len(layers)]
                done += 1
                start = time.perf_counter()
                layer(x_TK)
                taken.append((time.perf_counter() - start) * 1e3)
            time.sleep(idle_s)
            return statistics.median(taken)

        return median_ms

    operations = 2.0 * tokens * inner * params["out_features"]
    kind = limits.operand(params["format"])
    return Comparison(
        name="forward",
        params=params,
        ours=side(ours),
        limit=Limit(name=limits.NAME, measure=lambda: limits.roofline_ms(nbytes, operations, kind)),
        peers={label: side(layers, IDLE_S) for label, layers in peers.items()},
        seeds=run.seeds,
    )
