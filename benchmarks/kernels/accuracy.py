"""kernels/accuracy: relative L2 error of an MoE layer's output against double precision.

Weights (deviation 0.01 to 0.03, growing with the expert) and activations are Gaussian and rounded
to bf16, as checkpoints and models hold them. Ours and the peers get the same weights, activations
and routing; a value is the error over a few tokens. "on own weights" takes what the format made of
the weights as exact, so that only the arithmetic's error remains.
"""

import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.case import Run
from benchmarks.kernels.layers import LayerShape, routings
from benchmarks.kernels.peer_layers import PeerFailed, PeerKind, PeerLayer
from benchmarks.triples import Samples
from inlay import kernels

Weights = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # gate, up, down
GAUSSIAN = "gaussian"
OWN_WEIGHTS = "gaussian on own weights"
OUTLIERS = "outliers"


@dataclass(frozen=True, kw_only=True)
class Data:
    """One layer and the inputs of one call."""

    weights: list[Weights]
    x_TM: NDArray[np.float32]
    ids_TK: NDArray[np.int32]
    routing_TK: NDArray[np.float32]


def measure(run: Run) -> Generator[Samples, None, None]:
    """One entry per format and kind of data; a value for each group of tokens."""
    shape = LayerShape.of(run.workload["layer"])
    data = draw(run, shape, outliers=False)
    inputs = {GAUSSIAN: data, OWN_WEIGHTS: data, OUTLIERS: draw(run, shape, outliers=True)}
    exact = {name: exact_layer(inputs[name]) for name in (GAUSSIAN, OUTLIERS)}
    outputs = peer_outputs(run, shape, data)
    group = run.workload["tokens_per_value"]
    for params in run.params("relative_l2"):
        packed = kernels.ExpertWeights(
            shape.experts, shape.hidden, shape.intermediate, params["format"]
        )
        for expert, parts in enumerate(data.weights):
            packed.set(expert, *parts)
        given = inputs[params["data"]]
        out_TM = np.empty_like(given.x_TM)
        kernels.moe(given.x_TM, packed, given.ids_TK, given.routing_TK, out_TM)
        if params["data"] == OWN_WEIGHTS:
            exact_TM = exact_layer(given, [packed.dequantize(e) for e in range(shape.experts)])
        else:
            exact_TM = exact[params["data"]]
        peers = outputs.get(params["format"], {}) if params["data"] == GAUSSIAN else {}
        yield Samples(
            name="relative_l2",
            params=params,
            values=errors(out_TM, exact_TM, group),
            peers={label: errors(theirs, exact_TM, group) for label, theirs in peers.items()},
            seeds=run.seeds,
        )


def draw(run: Run, shape: LayerShape, outliers: bool) -> Data:
    """The same weights and routing every time; some channels of x are larger if asked for."""
    rng = np.random.default_rng(run.seeds[0])
    wide, tall = (shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)
    weights = []
    for deviation in 0.02 * (0.5 + np.arange(shape.experts) / shape.experts):
        gate, up, down = (
            to_bf16(rng.standard_normal(side, np.float32) * np.float32(deviation))
            for side in (wide, wide, tall)
        )
        weights.append((gate, up, down))
    x_TM = rng.standard_normal((run.workload["tokens"], shape.hidden), np.float32)
    if outliers:
        channels = rng.permutation(shape.hidden)[: shape.hidden // 100]
        x_TM[:, channels] *= run.workload["outlier_factor"]
    ids_CTK, routing_CTK = next(routings(shape, len(x_TM), 1, run.seeds[0]))
    return Data(weights=weights, x_TM=to_bf16(x_TM), ids_TK=ids_CTK[0], routing_TK=routing_CTK[0])


def errors(out_TM: NDArray[Any], exact_TM: NDArray[np.float64], tokens: int) -> list[float]:
    """Relative L2 error of each run of `tokens` tokens."""
    norms = [
        np.linalg.norm(rows.reshape(-1, tokens * rows.shape[1]), axis=1)
        for rows in (out_TM - exact_TM, exact_TM)
    ]
    return [float(ratio) for ratio in norms[0] / norms[1]]


def exact_layer(data: Data, weights: list[Weights] | None = None) -> NDArray[np.float64]:
    """The layer in double precision, with other weights if given."""
    out_TM = np.zeros(data.x_TM.shape)
    for expert, (gate_FM, up_FM, down_MF) in enumerate(weights or data.weights):
        tokens, places = np.nonzero(data.ids_TK == expert)
        x = data.x_TM[tokens].astype(np.float64)
        gate = x @ gate_FM.T.astype(np.float64)
        h = gate / (1 + np.exp(-gate)) * (x @ up_FM.T.astype(np.float64))
        routed = data.routing_TK[tokens, places, None]
        out_TM[tokens] += routed * (h @ down_MF.T.astype(np.float64))
    return out_TM


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to the nearest bf16, ties to even; finite values."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def peer_outputs(
    run: Run, shape: LayerShape, data: Data
) -> dict[str, dict[str, NDArray[np.float32]]]:
    """By format of equal bits: label -> what the peer's layer gave."""
    found: dict[str, dict[str, NDArray[np.float32]]] = {}
    if run.peers is None:
        return found
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index, part in enumerate(("gate", "up", "down")):
            np.stack([parts[index] for parts in data.weights]).tofile(folder / part)
        data.x_TM.tofile(folder / "x")
        data.ids_TK.astype(np.int64).tofile(folder / "ids")
        data.routing_TK.tofile(folder / "weights")
        for declared in run.workload["peers"]:
            about = dict(declared)
            weight_format = about.pop("format")
            (folder / "out").unlink(missing_ok=True)
            try:
                kind = PeerKind(**about)
                threads = kernels.num_threads()
                with PeerLayer(run.peers, kind, shape.sizes, threads, folder) as peer:
                    out_TM = np.fromfile(folder / "out", np.float32).reshape(data.x_TM.shape)
                    found.setdefault(weight_format, {})[peer.label] = out_TM
            except PeerFailed as error:
                print(f"peer left out: {error}", file=sys.stderr)
    return found
