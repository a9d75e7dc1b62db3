"""How much more than the mean the busiest GPU of whole experts has to do.

Tokens choose experts by Zipf's law, the n-th most popular one as often as `1 / n^exponent`; which
one that is has nothing to do with its number. Long runs of tokens: what a step has by chance beyond
that is left out. 0 is even; what real models have differs from layer to layer and by what is asked.

Source of copies and packing: EPLB, DeepSeek's expert-parallel load balancer.
"""

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ArgumentError

_LAYERS = 64
"""Orders that are drawn where experts lie as they are numbered."""

Loads = NDArray[np.float64]


def imbalance(
    experts: int, gpus: int, *, exponent: float, redundant: int = 0, balanced: bool
) -> float:
    """Routed work of the busiest GPU over the mean, of an average layer.

    Args:
        redundant: copies beside one of each expert; only with `balanced`.
        balanced: the busiest experts are copied, and all are packed so that GPUs are alike, for
            loads that stay as they are known; otherwise GPUs have experts in order of number.

    Raises:
        ArgumentError: experts and copies are not alike for all GPUs, or a number is out of range.
    """
    if gpus < 1 or experts < 1 or redundant < 0 or (experts + redundant) % gpus:
        raise ArgumentError(
            f"imbalance: {experts} experts and {redundant} copies are not alike for {gpus} GPUs"
        )
    if redundant and not balanced:
        raise ArgumentError("imbalance: copies are for experts that are balanced")
    if not 0 <= exponent < float("inf"):
        raise ArgumentError(f"imbalance: exponent must be at least 0, got {exponent}")
    loads_E: Loads = np.arange(1, experts + 1, dtype=np.float64) ** -exponent
    loads_E /= loads_E.mean()
    if balanced:
        busiest = _packed(_copied(loads_E, redundant), gpus)
    else:
        draw = np.random.default_rng(0)
        orders = (draw.permutation(loads_E).reshape(gpus, -1) for _ in range(_LAYERS))
        busiest = float(np.mean([order.sum(axis=1).max() for order in orders]))
    return busiest * gpus / experts


def _copied(loads_E: Loads, redundant: int) -> Loads:
    """Loads of copies: each more is of the expert whose copies have most."""
    copies_E = np.ones(len(loads_E), int)
    for _ in range(redundant):
        copies_E[np.argmax(loads_E / copies_E)] += 1
    return np.repeat(loads_E / copies_E, copies_E)


def _packed(loads_C: Loads, gpus: int) -> float:
    """Load of the busiest GPU: each copy, the busiest first, goes where there is least and room."""
    room_G = np.full(gpus, len(loads_C) // gpus)
    load_G = np.zeros(gpus)
    for load in np.sort(loads_C)[::-1]:
        at = int(np.argmin(np.where(room_G > 0, load_G, np.inf)))
        load_G[at] += load
        room_G[at] -= 1
    return float(load_G.max())
