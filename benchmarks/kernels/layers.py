"""MoE layers as the benchmarks use them: shape, random weights and routing, one timed call.

Shape letters: C calls, T tokens, K top-k, M model dim, F expert width, E experts.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay import kernels

Routing = tuple[NDArray[np.int32], NDArray[np.float32]]

# Layers take turns, so that no weights are in a cache from the call before. One is enough where it
# alone is far larger.
LARGE_BYTES = 10**9


@dataclass(frozen=True)
class LayerShape:
    """One layer of routed experts."""

    hidden: int
    intermediate: int
    experts: int
    top_k: int

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "LayerShape":
        """The shape among a measurement's parameters."""
        return cls(*(params[name] for name in ("hidden", "intermediate", "experts", "top_k")))

    @property
    def sizes(self) -> tuple[int, ...]:
        """As the peers' scripts take it."""
        return astuple(self)

    def operations(self, tokens: int) -> float:
        """Of one call, two per multiply-add."""
        return 6.0 * self.hidden * self.intermediate * self.top_k * tokens


def routings(shape: LayerShape, tokens: int, calls: int, seed: int) -> Iterator[Routing]:
    """Random experts, distinct per token, and their weights: arrays [C, T, K], ever new ones.

    Two iterators of the same arguments give the same arrays, so every side of a triple gets the
    same routing.
    """
    rng = np.random.default_rng([seed, tokens])
    while True:
        scores = rng.random((calls, tokens, shape.experts), np.float32)
        ids_CTK = np.argpartition(scores, shape.top_k - 1, axis=2)[..., : shape.top_k]
        yield ids_CTK.astype(np.int32), rng.random(ids_CTK.shape, np.float32)


def expected_touched(shape: LayerShape, tokens: int) -> float:
    """How many distinct experts a call of `routings` uses, on average."""
    return float(shape.experts * (1 - (1 - shape.top_k / shape.experts) ** tokens))


class OurLayers:
    """Two packed layers (or a large one) of Gaussian weights in one format, called in turn."""

    def __init__(self, shape: LayerShape, weight_format: str, seed: int) -> None:
        self.shape = shape
        rng = np.random.default_rng(seed)
        self._experts = [_pack(shape, weight_format, rng)]
        if self.nbytes < LARGE_BYTES:
            self._experts.append(_pack(shape, weight_format, rng))
        self._calls = 0

    @property
    def nbytes(self) -> int:
        """Packed weights of one layer, scales included."""
        return int(self._experts[0].nbytes)

    def milliseconds(self, ids_CTK: NDArray[np.int32], weights_CTK: NDArray[Any]) -> list[float]:
        """Time C calls, each with new activations, into one array, as in an engine's step."""
        rng = np.random.default_rng(self._calls)
        tokens = ids_CTK.shape[1]
        out_TM = np.full((tokens, self.shape.hidden), np.nan, np.float32)
        taken = []
        for ids_TK, weights_TK in zip(ids_CTK, weights_CTK, strict=True):
            x_TM = rng.standard_normal(out_TM.shape, np.float32)
            experts = self._experts[self._calls % len(self._experts)]
            start = time.perf_counter()
            kernels.moe(x_TM, experts, ids_TK, weights_TK, out_TM)
            taken.append((time.perf_counter() - start) * 1e3)
            self._calls += 1
        return taken


def _pack(shape: LayerShape, weight_format: str, rng: np.random.Generator) -> kernels.ExpertWeights:
    """Every expert sees its own part of one tall Gaussian matrix per projection."""
    step = 8
    more = step * shape.experts
    sides = ((shape.intermediate, shape.hidden),) * 2 + ((shape.hidden, shape.intermediate),)
    tall = [rng.standard_normal((rows + more, columns), np.float32) for rows, columns in sides]
    for matrix in tall:
        matrix *= 0.02
    packed = kernels.ExpertWeights(shape.experts, shape.hidden, shape.intermediate, weight_format)
    for expert in range(shape.experts):
        packed.set(
            expert,
            *(
                matrix[expert * step : expert * step + rows]
                for matrix, (rows, _) in zip(tall, sides, strict=True)
            ),
        )
    return packed
