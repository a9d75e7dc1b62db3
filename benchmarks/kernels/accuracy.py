"""kernels/accuracy: relative L2 error of an MoE layer's output against double precision.

Weights and activations are Gaussian and rounded to bf16, as checkpoints and models hold them; so do
the peers' scripts, which print the same error of their own layer. "on own weights" takes what the
format made of the weights as exact, so that only the arithmetic's error remains.
"""

import contextlib
import sys
from collections.abc import Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from benchmarks.case import Run
from benchmarks.kernels.layers import LayerShape, routings
from benchmarks.kernels.peer_layers import PeerFailed, PeerKind, PeerLayer
from benchmarks.triples import Samples
from inlay import kernels

Weights = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # gate, up, down
OWN_WEIGHTS = "gaussian on own weights"
OUTLIERS = "outliers"


def measure(run: Run) -> Generator[Samples, None, None]:
    """One entry per format and kind of data; a value for each seed."""
    shape = LayerShape.of(run.workload["layer"])
    errors_of_peers = peer_errors(run, shape)
    for params in run.params("relative_l2"):
        values = [relative_l2(run, shape, params, seed) for seed in run.seeds]
        peers = errors_of_peers.get(params["format"], {}) if params["data"] == "gaussian" else {}
        yield Samples(
            name="relative_l2",
            params=params,
            values=values,
            peers={label: [error] * len(values) for label, error in peers.items()},
            seeds=run.seeds,
        )


def relative_l2(run: Run, shape: LayerShape, params: Mapping[str, str], seed: int) -> float:
    """The error of one draw of weights, activations and routing."""
    rng = np.random.default_rng(seed)
    tokens = run.workload["tokens"]
    sides = ((shape.intermediate, shape.hidden),) * 2 + ((shape.hidden, shape.intermediate),)
    weights: list[Weights] = [
        tuple(to_bf16(rng.standard_normal(side, np.float32) * 0.02) for side in sides)  # type: ignore[misc]
        for _ in range(shape.experts)
    ]
    x_TM = rng.standard_normal((tokens, shape.hidden), np.float32)
    if params["data"] == OUTLIERS:
        channels = rng.permutation(shape.hidden)[: shape.hidden // 100]
        x_TM[:, channels] *= run.workload["outlier_factor"]
    x_TM = to_bf16(x_TM)
    ids_CTK, routing_CTK = next(routings(shape, tokens, 1, seed))
    experts = kernels.ExpertWeights(
        shape.experts, shape.hidden, shape.intermediate, params["format"]
    )
    for expert, parts in enumerate(weights):
        experts.set(expert, *parts)
    out_TM = np.empty_like(x_TM)
    kernels.moe(x_TM, experts, ids_CTK[0], routing_CTK[0], out_TM)
    if params["data"] == OWN_WEIGHTS:
        weights = [experts.dequantize(expert) for expert in range(shape.experts)]
    exact_TM = exact_layer(x_TM, weights, ids_CTK[0], routing_CTK[0])
    return float(np.linalg.norm(out_TM - exact_TM) / np.linalg.norm(exact_TM))


def exact_layer(
    x_TM: NDArray[np.float32],
    weights: list[Weights],
    ids_TK: NDArray[np.int32],
    routing_TK: NDArray[np.float32],
) -> NDArray[np.float64]:
    """The layer in double precision."""
    out_TM = np.zeros(x_TM.shape)
    for expert, (gate_FM, up_FM, down_MF) in enumerate(weights):
        tokens, places = np.nonzero(ids_TK == expert)
        x = x_TM[tokens].astype(np.float64)
        gate = x @ gate_FM.T.astype(np.float64)
        h = gate / (1 + np.exp(-gate)) * (x @ up_FM.T.astype(np.float64))
        out_TM[tokens] += routing_TK[tokens, places, None] * (h @ down_MF.T.astype(np.float64))
    return out_TM


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to the nearest bf16, ties to even; finite values."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def peer_errors(run: Run, shape: LayerShape) -> dict[str, dict[str, float]]:
    """By format of equal bits: label -> error that the peer's script found for itself."""
    found: dict[str, dict[str, float]] = {}
    for declared in run.workload["peers"] if run.peers else []:
        about = dict(declared)
        weight_format = about.pop("format")
        with contextlib.ExitStack() as stack:
            try:
                assert run.peers
                layer = PeerLayer(run.peers, PeerKind(**about), shape.sizes, kernels.num_threads())
            except PeerFailed as error:
                print(f"peer left out: {error}", file=sys.stderr)
                continue
            stack.enter_context(layer)
            if layer.relative_error is not None:
                found.setdefault(weight_format, {})[layer.label] = layer.relative_error
    return found
